//! Images put into groups by what is known of them: months, day and night, clips, bands of temperature, any key of their meta.

use std::collections::{BTreeSet, HashMap};

use super::meta::{CLIP, FrameMeta, MOMENT, is_unknown};
use super::moment::Moment;

/// Of more different numbers than this, bands are made.
const VALUES: usize = 12;
/// At most so many bands.
const BANDS: f64 = 8.0;
/// Numbers of which at most one in so many different values is a text are numbers still.
const WORDS: usize = 10;
/// At either end so many of the different values may be no measurements.
const TAIL: usize = 20;
/// So many times as far from the others as these are from each other is a value that says that none was measured: -9999.
const FAR: f64 = 3.0;
/// Solar radiation, W/m², above which it is day: pyranometers read a few watts in the dark.
const DAYLIGHT: f64 = 5.0;
/// And below which nothing was measured: of the dark they read a few watts less than none.
const NO_LIGHT: f64 = -100.0;
const MONTH: &str = "month";
const HOUR: &str = "hour";
const DAY_NIGHT: &str = "daynight";
/// Keys that are made of others.
const MADE: [&str; 4] = [MONTH, HOUR, DAY_NIGHT, CLIP];

/// Which group each image is in.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouping {
    /// What the groups differ in.
    pub key: String,
    /// Of each group, in their order.
    pub names: Vec<String>,
    /// Of each image; none where nothing is known.
    pub of: Vec<Option<u32>>,
}

impl Grouping {
    /// The first `images` images by `key`: `month` and `hour` of [`MOMENT`], `daynight`, `clip`, or a key of their meta. Numbers of many values
    /// come in bands of a round width, with open bands for what lies far from the others, and groups of their own for the few texts among them. How data sets
    /// write that nothing is known (`NaN`, `n/a`) is no value.
    ///
    /// # Errors
    /// A key that no image has, with those there are.
    pub fn by(meta: &FrameMeta, key: &str, images: usize) -> Result<Self, String> {
        let moment = |index| Moment::read(meta.get(index, MOMENT)?);
        let named: Vec<Option<String>> = match key {
            MONTH => (0..images).map(|i| moment(i).map(|m| format!("{:04}-{:02}", m.year, m.month))).collect(),
            HOUR => (0..images).map(|i| moment(i).map(|m| format!("{:02} h", m.hour))).collect(),
            DAY_NIGHT => {
                // Once, and not for each of a million images.
                let keys = ["Day_Night", "Sun Radiation Intensity"].map(|key| known(meta, key));
                (0..images).map(|i| day_night(meta, keys, i)).collect()
            }
            CLIP => return Self::by_values(meta, key, images).ok_or_else(|| unknown(meta, key)),
            _ => return Self::by_values(meta, known(meta, key), images).ok_or_else(|| unknown(meta, key)),
        };
        let grouping = Self::of_names(key, named);
        if grouping.names.is_empty() { Err(unknown(meta, key)) } else { Ok(grouping) }
    }

    /// What a year of a camera is judged by, as far as the meta tells: months, day and night, temperature, clips.
    pub fn usual(meta: &FrameMeta, images: usize) -> Vec<String> {
        let clips = if meta.clips() > 1 && meta.clips() < images { Some(CLIP) } else { None };
        let temperature = meta.keys().into_iter().find(|k| k.eq_ignore_ascii_case("temperature"));
        let keys = [Some(MONTH), Some(DAY_NIGHT), temperature, clips.filter(|_| meta.tells())];
        keys.into_iter().flatten().filter(|key| Self::by(meta, key, images).is_ok()).map(String::from).collect()
    }

    fn of_names(key: &str, named: Vec<Option<String>>) -> Self {
        let names: BTreeSet<&String> = named.iter().flatten().collect();
        let at: HashMap<&String, u32> = names.iter().zip(0..).map(|(name, at)| (*name, at)).collect();
        let of = named.iter().map(|name| name.as_ref().map(|name| at[name])).collect();
        Self { key: key.into(), names: names.into_iter().cloned().collect(), of }
    }

    /// By the values of a key; none if no image has it.
    fn by_values(meta: &FrameMeta, key: &str, images: usize) -> Option<Self> {
        // A folder may have any name.
        let value = |i| meta.get(i, key).filter(|text| key == CLIP || !is_unknown(text));
        let different: BTreeSet<&str> = (0..images).filter_map(value).collect();
        let numbers: Vec<f64> = different.iter().filter_map(|text| number(text)).collect();
        let words = different.len() - numbers.len();
        if key == CLIP || numbers.is_empty() || words * WORDS > different.len() {
            let grouping = Self::of_names(key, (0..images).map(|i| value(i).map(String::from)).collect());
            return Some(grouping).filter(|g| !g.names.is_empty());
        }
        let band = bands(numbers);
        let group = |text: &str| number(text).map_or_else(|| (f64::INFINITY, text.to_string()), &band);
        let mut order: Vec<((f64, String), &str)> = different.iter().map(|text| (group(text), *text)).collect();
        order.sort_by(|((a, _), _), ((b, _), _)| a.total_cmp(b));
        let mut names: Vec<String> = Vec::new();
        let mut at: HashMap<&str, u32> = HashMap::new();
        for ((_, name), text) in order {
            if names.last() != Some(&name) {
                names.push(name);
            }
            at.insert(text, names.len() as u32 - 1);
        }
        let of = (0..images).map(|i| at.get(value(i)?).copied()).collect();
        Some(Self { key: key.into(), names, of })
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// The key of the meta that is meant, in whatever case it was written.
fn known<'a>(meta: &'a FrameMeta, key: &'a str) -> &'a str {
    let keys = meta.keys();
    keys.iter().find(|k| **k == key).or_else(|| keys.iter().find(|k| k.eq_ignore_ascii_case(key))).copied().unwrap_or(key)
}

fn unknown(meta: &FrameMeta, key: &str) -> String {
    let keys = meta.keys();
    let there = if keys.is_empty() { "nothing but their clips".to_string() } else { keys.join(", ") };
    format!("no image can be grouped by `{key}`: known of them is {there}, and by these {}", MADE.join(", "))
}

/// As the meta calls it under the first key, in whichever form; what is neither, a number or `dusk`, is a group of its own: whether 1 is the day nobody has
/// said. Where it does not, by the sun's radiation under the second.
fn day_night(meta: &FrameMeta, [day_night, sun]: [&str; 2], index: usize) -> Option<String> {
    let told = meta.get(index, day_night).map(|text| text.trim().to_lowercase());
    if let Some(told) = told.filter(|told| !is_unknown(told)) {
        return Some(match told.as_str() {
            "d" | "daytime" | "day-time" | "day time" | "daylight" => "day".into(),
            "n" | "nighttime" | "night-time" | "night time" => "night".into(),
            _ => told,
        });
    }
    let sun = number(meta.get(index, sun)?).filter(|sun| *sun > NO_LIGHT)?;
    Some(if sun > DAYLIGHT { "day" } else { "night" }.into())
}

/// From a number to where its group begins, and its name: the number itself where there are few different ones, else a band whose width is 1, 2 or 5 times
/// a power of ten, or what lies below or above all bands.
fn bands(mut numbers: Vec<f64>) -> impl Fn(f64) -> (f64, String) {
    numbers.sort_unstable_by(f64::total_cmp);
    let few = numbers.len() <= VALUES;
    let [low, high] = ends(&numbers);
    let rough = (high - low).max(f64::MIN_POSITIVE) / BANDS;
    let power = 10f64.powf(rough.log10().floor());
    let widths = [1.0, 2.0, 5.0, 10.0, 20.0].map(|m| m * power);
    // An edge belongs to the band that begins there, also where its quotient is a little below a whole number; and there is one zero.
    let band = |value: f64, width: f64| (value / width + 1e-9).floor() + 0.0;
    let count = |width: f64| band(high, width) - band(low, width) + 1.0;
    let width = widths.into_iter().find(|&w| count(w) <= BANDS).unwrap_or(widths[4]);
    let [first, last] = [low, high].map(|end| band(end, width));
    move |value| {
        if few {
            return (value + 0.0, (value + 0.0).to_string());
        }
        let at = band(value, width);
        let from = at * width;
        let decimals = (-width.log10().floor()).clamp(0.0, 8.0) as usize;
        if at < first {
            (f64::MIN, format!("below {:.decimals$}", first * width))
        } else if at > last {
            (f64::MAX, format!("{:.decimals$} and above", (last + 1.0) * width))
        } else {
            (from, format!("{from:.decimals$} to {:.decimals$}", from + width))
        }
    }
}

/// The least and the greatest of `sorted`, but for what lies far from all others: one -9999 among temperatures would make one band of these.
fn ends(sorted: &[f64]) -> [f64; 2] {
    let cut = sorted.len().div_ceil(TAIL);
    let middle = sorted.get(cut..sorted.len().saturating_sub(cut)).filter(|middle| !middle.is_empty()).unwrap_or(sorted);
    let [low, high] = [middle.first(), middle.last()].map(|end| end.copied().unwrap_or_default());
    let far = FAR * (high - low);
    let mut near = sorted.iter().copied().filter(|value| (low - far..=high + far).contains(value));
    [near.next().unwrap_or(low), near.next_back().unwrap_or(high)]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::meta::MetaBuilder;

    fn meta(rows: &[&[(&str, &str)]]) -> FrameMeta {
        let mut builder = MetaBuilder::default();
        for (row, pairs) in rows.iter().enumerate() {
            pairs.iter().for_each(|(key, text)| builder.set(row, key, text));
        }
        let mut meta = FrameMeta::new(vec![Arc::new(builder.finish())]);
        (0..rows.len()).for_each(|i| meta.push(i, Some((0, i as u32))));
        meta.find_clips((0..rows.len()).map(|i| format!("clip_{}/{i}.jpg", i / 2)));
        meta
    }

    #[test]
    fn months_days_and_clips() {
        let meta = meta(&[
            &[(MOMENT, "2021-01-03T05:00:00"), ("Sun Radiation Intensity", "0.4")],
            &[(MOMENT, "2020-05-14 23:07:15"), ("Sun Radiation Intensity", "310")],
            &[(MOMENT, "nonsense")],
            &[(MOMENT, "2020-05-01"), ("sun radiation intensity", "9")],
        ]);
        let by = |key| Grouping::by(&meta, key, 4).unwrap();
        assert_eq!((by("month").names.join(" "), by("month").of), ("2020-05 2021-01".into(), vec![Some(1), Some(0), None, Some(0)]));
        assert_eq!((by("daynight").names.join(" "), by("daynight").of), ("day night".into(), vec![Some(1), Some(0), None, None]));
        assert_eq!((by("clip").names.join(" "), by("clip").of), ("clip_0 clip_1".into(), vec![Some(0), Some(0), Some(1), Some(1)]));
        let numbered = self::meta(&[&[("Clip", "7")], &[("Clip", "8")], &[("Clip", "7")]]);
        assert_eq!(Grouping::by(&numbered, "clip", 3).unwrap().names, ["clip_0", "clip_1"], "a clip is no number of another name");
        assert_eq!(by("hour").names, ["00 h", "05 h", "23 h"]);
        assert_eq!(Grouping::usual(&meta, 4), ["month", "daynight", "clip"]);
        let refusal = Grouping::by(&meta, "Temprature", 4).unwrap_err();
        assert!(refusal.contains("`Temprature`") && refusal.contains("Sun Radiation Intensity"), "{refusal}");
        assert!(Grouping::usual(&FrameMeta::default(), 0).is_empty());
    }

    #[test]
    fn many_numbers_come_in_bands_and_few_as_they_are() {
        let texts: Vec<String> = (0..40).map(|i| format!("{}", f64::from(i) - 7.5)).collect();
        let rows: Vec<[(&str, &str); 2]> =
            texts.iter().map(|t| [("Temperature", t.as_str()), ("site", if t.starts_with('-') { "10" } else { "9" })]).collect();
        let meta = meta(&rows.iter().map(|r| &r[..]).collect::<Vec<_>>());
        let by = Grouping::by(&meta, "temperature", 40).unwrap();
        assert_eq!(by.names, ["-10 to 0", "0 to 10", "10 to 20", "20 to 30", "30 to 40"]);
        assert_eq!((by.of[0], by.of[7], by.of[8], by.of[39]), (Some(0), Some(0), Some(1), Some(4)));
        let by = Grouping::by(&meta, "site", 40).unwrap();
        assert_eq!((by.names.join(" "), by.of[0]), ("9 10".into(), Some(1)), "numbers stand in their order");
        let zeros = self::meta(&[&[("t", "-0.0")], &[("t", "0")], &[("t", "1")]]);
        assert_eq!(Grouping::by(&zeros, "t", 3).unwrap().names, ["0", "1"]);
        let texts: Vec<String> = (0..=14).map(|i| format!("{:.1}", f64::from(i) / 10.0)).chain(["-0.0".into()]).collect();
        let rows: Vec<[(&str, &str); 1]> = texts.iter().map(|t| [("t", t.as_str())]).collect();
        let meta = self::meta(&rows.iter().map(|r| &r[..]).collect::<Vec<_>>());
        let by = Grouping::by(&meta, "t", texts.len()).unwrap();
        assert_eq!((by.names.len(), by.of[15], by.of[6]), (8, Some(0), Some(3)), "{:?}", by.names);
    }

    /// Of values of a key `t`: the names of the groups, and of each image its group.
    fn by_t(texts: &[String]) -> Grouping {
        let rows: Vec<[(&str, &str); 1]> = texts.iter().map(|text| [("t", text.as_str())]).collect();
        Grouping::by(&meta(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>()), "t", texts.len()).unwrap()
    }

    #[test]
    fn what_is_no_number_among_many_leaves_the_bands_as_they_are() {
        let numbers: Vec<String> = (0..16).map(|i| (f64::from(i) * 2.5 - 7.5).to_string()).collect();
        let with = |more: &[&str]| numbers.iter().cloned().chain(more.iter().map(ToString::to_string)).collect::<Vec<String>>();
        let plain = by_t(&numbers);
        assert_eq!(plain.names, ["-10 to 0", "0 to 10", "10 to 20", "20 to 30", "30 to 40"]);
        let unknown = by_t(&with(&["NaN", "", "n/a", "NA", "None", "null", "-", " "]));
        assert_eq!((unknown.names, &unknown.of[..16], &unknown.of[16..]), (plain.names.clone(), &plain.of[..], &[None; 8][..]));
        let word = by_t(&with(&["broken"]));
        assert_eq!((word.names.last().unwrap().as_str(), &word.names[..5], word.of[16]), ("broken", &plain.names[..], Some(5)));
        // More words than one in ten are names of places, and numbers among them too.
        assert_eq!(by_t(&["2", "10", "north"].map(String::from)).names, ["10", "2", "north"]);
        assert_eq!(by_t(&["nan", "9", "10"].map(String::from)).names, ["9", "10"]);
    }

    #[test]
    fn what_was_not_measured_has_an_open_band() {
        let numbers: Vec<String> = (0..16).map(|i| (f64::from(i) * 2.5 - 7.5).to_string()).collect();
        let with = |more: &[&str]| by_t(&numbers.iter().cloned().chain(more.iter().map(ToString::to_string)).collect::<Vec<String>>());
        let bands = ["-10 to 0", "0 to 10", "10 to 20", "20 to 30", "30 to 40"];
        let low = with(&["-9999"]);
        assert_eq!(
            (&low.names[1..], low.names[0].as_str(), low.of[16], low.of[0]),
            (&bands.map(String::from)[..], "below -10", Some(0), Some(1))
        );
        let both = with(&["-9999", "9999", "broken"]);
        assert_eq!(both.names[5..], ["30 to 40", "40 and above", "broken"]);
        // A frost is a temperature.
        assert_eq!(with(&["-38"]).names[0], "-40 to -30");
        let night = |text: &str| {
            Grouping::by(&meta(&[&[("Sun Radiation Intensity", text)], &[("Sun Radiation Intensity", "310")]]), "daynight", 2).unwrap().of
                [0]
        };
        assert_eq!((night("nan"), night("-9999"), night("-3"), night("12")), (None, None, Some(1), Some(0)));
    }

    #[test]
    fn day_and_night_are_written_in_several_ways() {
        let texts = ["Day", "night ", "D", "N", "daytime", "Night-time", "null", "1"];
        let rows: Vec<[(&str, &str); 1]> = texts.iter().map(|text| [("Day_Night", *text)]).collect();
        let by = Grouping::by(&meta(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>()), "daynight", texts.len()).unwrap();
        assert_eq!(by.names, ["1", "day", "night"], "nobody knows what 1 is");
        assert_eq!(by.of, [Some(1), Some(2), Some(1), Some(2), Some(1), Some(2), None, Some(0)]);
    }
}
