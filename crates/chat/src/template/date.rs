//! `strftime_now` of chat templates, as `transformers` gives them the date. Here it is one date for ever: with the day's own a run that is resumed
//! would read other tokens than the one that began.

/// 26 July 2024, a Friday, at midnight, in a format of C's `strftime`: the date that Llama 3's templates write where they are told of none.
///
/// # Errors
/// A sentence that names a code which is not known here.
pub(super) fn strftime_now(format: &str) -> Result<String, String> {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        // `%-m` has no leading zero.
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let text = match code {
            Some('a') => "Fri",
            Some('A') => "Friday",
            Some('b' | 'h') => "Jul",
            Some('B') => "July",
            Some('d' | 'e') => "26",
            Some('j') => "208",
            Some('m') => "07",
            Some('y') => "24",
            Some('Y') => "2024",
            Some('H' | 'M' | 'S') => "00",
            Some('I') => "12",
            Some('p') => "AM",
            Some('D') => "07/26/24",
            Some('F') => "2024-07-26",
            Some('R') => "00:00",
            Some('T') => "00:00:00",
            Some('%') => "%",
            Some(code) => return Err(format!("strftime_now knows no %{code}")),
            None => return Err("strftime_now: the format ends with a %".into()),
        };
        out.push_str(if bare && text.len() == 2 { text.strip_prefix('0').unwrap_or(text) } else { text });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Python 3.11: datetime(2024, 7, 26).strftime(format).
    #[test]
    fn as_python_writes_that_date() {
        for (format, expected) in [
            ("%d %b %Y", "26 Jul 2024"),
            ("%Y-%m-%d", "2024-07-26"),
            ("%B %d, %Y", "July 26, 2024"),
            ("%A (%a), %-d/%-m/%y, day %j: 100 %%", "Friday (Fri), 26/7/24, day 208: 100 %"),
            ("%F %T %D %R %-H %I %p %e %h", "2024-07-26 00:00:00 07/26/24 00:00 0 12 AM 26 Jul"),
        ] {
            assert_eq!(strftime_now(format).unwrap(), expected);
        }
        assert_eq!(strftime_now("%d %Q").unwrap_err(), "strftime_now knows no %Q");
        assert!(strftime_now("100%").is_err());
    }
}
