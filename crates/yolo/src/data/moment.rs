//! The moment a frame was taken, as cameras and data sets write it.

/// A date and a time of day of the camera's own clock, whatever its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) year: u32,
    /// 1 to 12.
    pub(crate) month: u32,
    /// 1 to 31.
    day: u32,
    pub(crate) hour: u32,
    minute: u32,
    second: u32,
    millisecond: u32,
}

impl Moment {
    /// Reads `2020-05-14T23:07:15`, with a space for the `T`, slashes or (as in EXIF) colons for the hyphens, fractions behind a point or a comma and a zone
    /// behind it, or the date alone.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
        let mut date = date.splitn(3, ['-', '/', ':']).map(|part| part.parse::<u32>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let (clock, behind) = time.split_at(time.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(time.len()));
        let clock = clock.split(':').filter(|_| !time.is_empty()).map(str::parse::<u32>);
        let clock: Vec<u32> = clock.collect::<Result<_, _>>().ok()?;
        let at = |i: usize| clock.get(i).copied().unwrap_or(0);
        let (millisecond, behind) = thousandths(behind);
        if clock.len() > 3 || !is_zone(behind) {
            return None;
        }
        let moment = Self { year, month, day, hour: at(0), minute: at(1), second: at(2), millisecond };
        let possible = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && moment.hour < 24
            && moment.minute < 60
            && moment.second < 61;
        possible.then_some(moment)
    }

    /// Days since 1970 (of the civil calendar, counted as Howard Hinnant's `days_from_civil` does).
    pub(crate) fn days(&self) -> i64 {
        let (year, month, day) = (i64::from(self.year) - i64::from(self.month <= 2), i64::from(self.month), i64::from(self.day));
        let era = year.div_euclid(400);
        let of_era = year.rem_euclid(400);
        let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
        era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
    }

    /// `2020-05-14`.
    pub(crate) fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }

    /// Seconds since 1970 on that clock.
    pub(crate) fn seconds(&self) -> i64 {
        self.days() * 86_400 + i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second)
    }

    /// The same in milliseconds.
    pub(crate) fn milliseconds(&self) -> i64 {
        self.seconds() * 1000 + i64::from(self.millisecond)
    }
}

/// Of a second, what stands behind its point or comma (`.25` is 250), and what follows.
fn thousandths(text: &str) -> (u32, &str) {
    let Some(text) = text.strip_prefix(['.', ',']) else { return (0, text) };
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    let behind = &text[digits.clone().count()..];
    (digits.zip([100, 10, 1]).map(|(digit, unit)| u32::from(digit - b'0') * unit).sum(), behind)
}

/// None, `Z`, behind a space any name, or hours from UTC, behind which its name may stand (`+0200 CEST`, `+02:00[Europe/Berlin]`). `PM` is none.
fn is_zone(text: &str) -> bool {
    let (apart, text) = (text.starts_with(' '), text.trim_start());
    let name = apart && text.bytes().all(|b| b.is_ascii_alphabetic()) && !["am", "pm"].contains(&text.to_lowercase().as_str());
    let is_offset = |hours: &str| {
        let behind = hours.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
        behind.len() < hours.len() && (behind.is_empty() || behind.starts_with([' ', '[']))
    };
    name || ["", "Z", "z"].contains(&text) || text.strip_prefix(['+', '-']).is_some_and(is_offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_that_are_written() {
        let expected = Moment { year: 2020, month: 5, day: 14, hour: 23, minute: 7, second: 15, millisecond: 0 };
        for text in [
            "2020-05-14T23:07:15",
            "2020/05/14 23:07:15",
            "2020-05-14T23:07:15Z",
            "2020-05-14T23:07:15+02:00",
            "2020:05:14 23:07:15",
            "2020-05-14 23:07:15 +0200",
            "2020-05-14 23:07:15 +0000 UTC",
            "2020-05-14T23:07:15+02:00[Europe/Berlin]",
            "2020-05-14T23:07:15Z\n",
            " 2020-05-14 23:07:15 UTC ",
        ] {
            assert_eq!(Moment::read(text), Some(expected), "{text}");
        }
        for (text, millisecond) in
            [("15.250", 250), ("15.25", 250), ("15.0004999", 0), ("15.9999Z", 999), ("15.5+02:00", 500), ("15.", 0), ("15,250", 250)]
        {
            assert_eq!(Moment::read(&format!("2020-05-14 23:07:{text}")), Some(Moment { millisecond, ..expected }), "{text}");
        }
        assert_eq!(Moment { millisecond: 7, ..expected }.milliseconds(), 1_589_497_635_007);
        assert_eq!(Moment::read("2021-01-02").unwrap().hour, 0);
        for text in [
            "",
            "today",
            "2020-13-01",
            "2020-05-14T25:00:00",
            "20200514",
            "14.5.2020",
            "2020-05-14T23:07:1x",
            "2020-05-14 noon",
            "2020-05-14 23::15",
            "2020-05-14 11:07:15 PM",
            "2020-05-14 23:07:15.2!",
            "2020-05-14 1:2:3:4",
            "2020-05-14 23:07:15-",
            "2020-05-14 23:07:15+2h",
        ] {
            assert_eq!(Moment::read(text), None, "{text}");
        }
    }

    #[test]
    fn seconds_are_those_of_unix() {
        for (text, seconds) in
            [("1970-01-01", 0), ("2000-02-29T12:00:00", 951_825_600), ("2020-05-14T23:07:15", 1_589_497_635), ("1969-12-31T23:59:59", -1)]
        {
            assert_eq!(Moment::read(text).unwrap().seconds(), seconds, "{text}");
        }
    }
}
