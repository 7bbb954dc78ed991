//! Which frame stands before which in a clip: by the times they were taken, or by the numbers in their names, and none across a gap.
//!
//! A gap is one and a half of the clip's usual step or more: frames are missing there, or the camera stood still, and the frame behind it begins anew, as the
//! first of a clip does. Numbers that are all times of day (`230759`) go on over the minute as clocks do. Where names differ in more than one number nothing
//! is known of the step, and it is no gap.

use std::path::Path;

use super::frame_interval::{FEW, GAP, typical_interval};
use super::meta::{FrameMeta, MOMENT};
use super::moment::Moment;
use super::natural::natural;

/// Digits that are read as a number.
const LONGEST: usize = 15;

/// The frames of a clip in their order, and what lies between them.
struct Line {
    order: Vec<usize>,
    /// From each frame to the next: milliseconds, or numbers; none where that is not known.
    steps: Vec<Option<i64>>,
    timed: bool,
    /// A step up to this is no gap: times in whole seconds or minutes tell it to a second or a minute.
    least: i64,
}

impl Line {
    /// Of `frames`, of which `time` and `name` are asked.
    fn new<'a>(frames: Vec<usize>, time: impl Fn(usize) -> Option<i64>, name: impl Fn(usize) -> &'a str) -> Self {
        let times: Option<Vec<(i64, usize)>> = frames.iter().map(|&i| Some((time(i)?, i))).collect();
        // A date alone is no time.
        if let Some(mut timed) = times.filter(|times| times.windows(2).any(|pair| pair[0].0 != pair[1].0)) {
            timed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| natural(name(a.1), name(b.1))));
            let steps: Vec<Option<i64>> = timed.windows(2).map(|pair| Some(pair[1].0 - pair[0].0)).collect();
            // Two frames at whole minutes are no clock without seconds, if they share none.
            let all_told = |to: i64| timed.iter().all(|(at, _)| at % to == 0) && (to == 1000 || steps.contains(&Some(0)));
            let least = [60_000, 1000].into_iter().find(|&to| all_told(to)).unwrap_or(0);
            return Self { order: timed.into_iter().map(|(_, i)| i).collect(), steps, timed: true, least };
        }
        let mut order = frames;
        order.sort_by(|&a, &b| natural(name(a), name(b)));
        let steps = numbered(&order.iter().map(|&i| name(i)).collect::<Vec<_>>());
        Self { order, steps, timed: false, least: 0 }
    }

    /// Whether a step of this clip is a gap where `usual` is the step of all.
    fn gaps(&self, usual: Option<f64>) -> impl Iterator<Item = bool> {
        let steps: Vec<i64> = self.steps.iter().flatten().copied().collect();
        let shared = steps.iter().filter(|&&step| step == 0).count();
        let (count, own) = (steps.len(), typical_interval(steps));
        let usual = if self.least > 0 && 2 * shared >= count {
            // Several frames a second or a minute, told in whole ones.
            Some(self.least as f64)
        } else if count < FEW {
            usual.or(own)
        } else {
            own
        };
        let is_gap = move |step: i64| usual.is_some_and(|usual| step as f64 >= GAP * usual) && step > self.least;
        self.steps.iter().map(move |step| step.is_some_and(is_gap))
    }
}

/// Of each image the one before it in its clip. A clip stands in the order of its times where all of its frames have one (frames of one moment by the numbers
/// in their names), else by the numbers in the names, which `paths` are.
pub(crate) fn before<P: AsRef<Path>>(meta: &FrameMeta, paths: impl Iterator<Item = P>) -> Vec<Option<u32>> {
    let names: Vec<String> = paths.map(|path| path.as_ref().to_string_lossy().into_owned()).collect();
    let mut clips = vec![Vec::new(); meta.clips()];
    (0..names.len()).for_each(|i| clips[meta.clip_of()[i] as usize].push(i));
    let time = |i: usize| Some(Moment::read(meta.get(i, MOMENT)?)?.milliseconds());
    let lines: Vec<Line> = clips.into_iter().map(|frames| Line::new(frames, time, |i| &names[i])).collect();
    let of_kind = |timed: bool| {
        typical_interval(lines.iter().filter(|line| line.timed == timed).flat_map(|line| line.steps.iter().flatten().copied()).collect())
    };
    let usual = [of_kind(false), of_kind(true)];
    let mut before = vec![None; names.len()];
    for line in &lines {
        for (pair, gap) in line.order.windows(2).zip(line.gaps(usual[usize::from(line.timed)])) {
            before[pair[1]] = Some(pair[0] as u32).filter(|_| !gap);
        }
    }
    before
}

/// Whether there is a gap before each of these files, which stand in the order of their names and are one clip.
pub(crate) fn gaps(names: &[&str]) -> Vec<bool> {
    let line = Line { order: Vec::new(), steps: numbered(names), timed: false, least: 0 };
    names.iter().take(1).map(|_| false).chain(line.gaps(None)).collect()
}

/// From each name to the next, by the last number in them; none where anything else of them differs.
fn numbered(names: &[&str]) -> Vec<Option<i64>> {
    let parts: Vec<_> = names.iter().map(|name| last_number(name)).collect();
    let clocks = parts.iter().all(|part| part.is_some_and(|(_, digits, _)| clock(digits).is_some()));
    let value = |digits: &str| if clocks { clock(digits) } else { digits.parse::<i64>().ok().filter(|_| digits.len() <= LONGEST) };
    let step = |pair: &[Option<(&str, &str, &str)>]| {
        let ((a, first, b), (c, second, d)) = (pair[0]?, pair[1]?);
        if (a, b) == (c, d) { Some(value(second)? - value(first)?) } else { None }
    };
    parts.windows(2).map(step).collect()
}

/// The last number in a file's name without its suffix, and what stands before and behind it.
fn last_number(name: &str) -> Option<(&str, &str, &str)> {
    let file = name.rfind(['/', '\\']).map_or(0, |at| at + 1);
    let stem = name.rfind('.').filter(|&dot| dot > file).unwrap_or(name.len());
    let end = name[..stem].rfind(|c: char| c.is_ascii_digit()).filter(|&at| at >= file)? + 1;
    let start = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    Some((&name[..start], &name[start..end], &name[end..stem]))
}

/// Milliseconds of `HHMMSS`, with `YYYYMMDD` before it or without.
fn clock(digits: &str) -> Option<i64> {
    let (date, time) = digits.split_at_checked(digits.len().checked_sub(6)?)?;
    let date = match date.len() {
        0 => "1970-01-01".to_string(),
        8 => format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]),
        _ => return None,
    };
    Some(Moment::read(&format!("{date}T{}:{}:{}", &time[..2], &time[2..4], &time[4..]))?.milliseconds())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::meta::MetaBuilder;

    /// Who stands before whom among these files with these times.
    fn of(frames: &[(&str, &str)]) -> Vec<Option<u32>> {
        let mut builder = MetaBuilder::default();
        frames.iter().enumerate().filter(|(_, (_, time))| !time.is_empty()).for_each(|(row, (_, time))| {
            builder.set(row, MOMENT, &format!("2020-05-14{}", if *time == "-" { String::new() } else { format!("T{time}") }));
        });
        let mut meta = FrameMeta::new(vec![Arc::new(builder.finish())]);
        (0..frames.len()).for_each(|i| meta.push(i, Some((0, i as u32))));
        let paths = || frames.iter().map(|(name, _)| *name);
        meta.find_clips(paths());
        before(&meta, paths())
    }

    fn named(names: &[&str]) -> Vec<Option<u32>> {
        of(&names.iter().map(|name| (*name, "")).collect::<Vec<_>>())
    }

    #[test]
    fn a_gap_in_time_ends_what_is_before() {
        let times = |seconds: &[&str]| {
            let names: Vec<String> = (0..seconds.len()).map(|i| format!("a/{i}.jpg")).collect();
            of(&names.iter().zip(seconds).map(|(name, time)| (name.as_str(), *time)).collect::<Vec<_>>())
        };
        let all = |n: u32| (0..n).map(|i| i.checked_sub(1)).collect::<Vec<_>>();
        assert_eq!(times(&["10:00:58", "10:00:59", "10:01:00", "10:01:01"]), all(4), "a minute is no gap");
        assert_eq!(
            times(&["10:00:00", "10:00:01", "10:00:02", "10:00:04", "10:00:05"]),
            [None, Some(0), Some(1), None, Some(3)],
            "one is missing"
        );
        assert_eq!(times(&["10:00:00", "10:00:01", "10:00:02", "10:00:04"])[3], None);
        // A frame in ten seconds is that camera's step; 0.7 a second comes as one and two; several a second as none and one.
        assert_eq!(times(&["10:00:00", "10:00:10", "10:00:20", "10:00:30"]), all(4));
        assert_eq!(times(&["10:00:00", "10:00:01", "10:00:02", "10:00:04", "10:00:05", "10:00:07", "10:00:08", "10:00:10"]), all(8));
        assert_eq!(times(&["10:00:00", "10:00:00", "10:00:00", "10:00:01", "10:00:01", "10:00:01"]), all(6));
        assert_eq!(times(&["10:00:00", "10:00:00", "10:00:00", "10:00:03"])[3], None);
        // Told in minutes, several frames in each.
        assert_eq!(times(&["10:00:00", "10:00:00", "10:01:00", "10:01:00", "10:02:00", "10:02:00"]), all(6));
        assert_eq!(times(&["10:00:00", "10:00:00", "10:01:00", "10:01:00", "10:04:00", "10:04:00"])[4], None);
        // Fractions of a second order frames, and tell that one is missing.
        assert_eq!(times(&["10:00:00.00", "10:00:00.40", "10:00:00.20", "10:00:00.60"]), [None, Some(2), Some(0), Some(1)]);
        assert_eq!(times(&["10:00:00.00", "10:00:00.20", "10:00:00.40", "10:00:00.80"])[3], None);
        // Times that were cut to half a second, of several frames each.
        assert_eq!(times(&["10:00:00.0", "10:00:00.0", "10:00:00.5", "10:00:00.5", "10:00:01.0", "10:00:01.0"]), all(6));
        assert_eq!(times(&["10:00:00.0", "10:00:00.0", "10:00:00.5", "10:00:00.5", "10:00:02.5"])[4], None);
    }

    #[test]
    fn frames_without_times_follow_their_numbers() {
        assert_eq!(named(&["a/frame1", "a/frame10", "a/frame2", "b/1"]), [None, None, Some(0), None], "eight are missing before the tenth");
        assert_eq!(
            named(&["a/frame0", "a/frame30", "a/frame60", "a/frame90"]),
            [None, Some(0), Some(1), Some(2)],
            "every thirtieth of a film"
        );
        assert_eq!(named(&["a/x.jpg", "a/y.jpg", "a/z9.png"]), [None, Some(0), Some(1)], "names without numbers tell of no gap");
        // Where one of a clip has no time, or all have the date alone, numbers are what there is.
        assert_eq!(of(&[("a/1", "10:00:09"), ("a/2", ""), ("a/3", "10:00:01")]), [None, Some(0), Some(1)]);
        assert_eq!(of(&[("a/2", "-"), ("a/1", "-"), ("a/3", "-"), ("a/9", "-")]), [Some(1), None, Some(0), None]);
    }

    #[test]
    fn numbers_that_are_times_of_day_go_on_over_the_minute() {
        let clock = ["a/225958.jpg", "a/225959.jpg", "a/230000.jpg", "a/230001.jpg", "a/230005.jpg"];
        assert_eq!(named(&clock), [None, Some(0), Some(1), Some(2), None]);
        let dated = ["a/20200229235958", "a/20200229235959", "a/20200301000000", "a/20200301000001"];
        assert_eq!(named(&dated), [None, Some(0), Some(1), Some(2)]);
        assert_eq!(gaps(&clock), [false, false, false, false, true]);
        // One number that is no time of day makes them all plain numbers.
        assert_eq!(named(&["a/000058", "a/000059", "a/000060", "a/000061", "a/000100"])[1..], [Some(0), Some(1), Some(2), None]);
        assert_eq!(gaps(&[]), [false; 0]);
    }

    #[test]
    fn the_last_number_of_a_name_is_found() {
        for (name, parts) in [
            ("a/1.2/frame07.jpg", Some(("a/1.2/frame", "07", ""))),
            ("12é34b.png", Some(("12é", "34", "b"))),
            ("a/1/x.jpg", None),
            ("a9/.jpg", None),
            ("7", Some(("", "7", ""))),
        ] {
            assert_eq!(last_number(name), parts, "{name}");
        }
    }

    #[test]
    fn a_clip_of_few_frames_is_measured_by_the_others() {
        let frames = [("a/0", "10:00:00"), ("a/1", "10:00:01"), ("a/2", "10:00:02"), ("b/0", "11:00:00"), ("b/1", "11:00:30")];
        assert_eq!(of(&frames), [None, Some(0), Some(1), None, None]);
    }
}
