//! Frames, decoded ahead of whoever looks at them, in the order of their sources.

use std::sync::mpsc::SyncSender;

use bellows_cli::Failure;
use bellows_yolo::boxes::Detection;
use bellows_yolo::data::{Frame, Normalisation, Ring, Stack, decode, decode_file};
use bellows_yolo::predict::past::Past;
use bellows_yolo::predict::source::Input;
use bellows_yolo::predict::video::{Film, FilmError};

/// A frame and where it is from.
pub(crate) struct Shot {
    /// Index of its source.
    pub(crate) input: usize,
    /// What it is called.
    pub(crate) name: String,
    /// What files of it are called.
    pub(crate) stem: String,
    /// Of a film: its number from 0, and frames a second as `ffmpeg` writes them.
    pub(crate) film: Option<(u64, String)>,
    /// Its pixels.
    pub(crate) frame: Frame,
    /// With the frames before it as channels, where the network looks at these.
    pub(crate) stacked: Option<Frame>,
}

impl Shot {
    /// What the network looks at.
    pub(crate) fn input(&self) -> &Frame {
        self.stacked.as_ref().unwrap_or(&self.frame)
    }
}

/// What comes from one thread to the next.
pub(crate) enum Seen {
    /// A frame, and once it was looked at what is on it and the milliseconds that took.
    Shot(Box<Shot>, Vec<Detection>, f64),
    /// A source that cannot be read.
    Skipped(String),
}

/// Decodes every source, 16-bit images by `levels`, of films every `stride`th frame; a receiver that is gone ends it. Frames before a frame are those of its
/// film that were looked at, or the images before it in its folder.
pub(crate) fn read(inputs: &[Input], stride: u64, (levels, stack): (&Normalisation, Stack), to: &SyncSender<Seen>) {
    let mut past = Past::new(stack, *levels);
    for (index, input) in inputs.iter().enumerate() {
        let mut clip = Ring::new(stack);
        let mut stacked = |frame: &Frame| stack.is_on().then(|| clip.push(frame));
        let shot = |film, frame, stacked| {
            let shot = Shot { input: index, name: input.name(), stem: input.stem(), film, frame, stacked };
            Seen::Shot(Box::new(shot), Vec::new(), 0.0)
        };
        let skipped = |reason: String| {
            let name = input.name();
            Seen::Skipped(if reason.contains(&name) { reason } else { format!("{name}: {reason}") })
        };
        let sent = match input {
            Input::Image(path) => to.send(decode_file(path, levels).map_or_else(
                |e| skipped(Failure::from(e).to_string()),
                |frame| {
                    let input = stack.is_on().then(|| past.input(path, &frame));
                    shot(None, frame, input)
                },
            )),
            Input::Bytes(bytes) => to.send(decode(bytes, "-", levels).map_or_else(
                |e| skipped(Failure::from(e).to_string()),
                |frame| {
                    let input = stacked(&frame);
                    shot(None, frame, input)
                },
            )),
            Input::Film(_) | Input::Camera(_) | Input::Stream(_) => {
                let each = |number: u64, rate: &str, frame: Frame| {
                    if !number.is_multiple_of(stride) {
                        return true;
                    }
                    let input = stacked(&frame);
                    to.send(shot(Some((number, rate.to_string())), frame, input)).is_ok()
                };
                film(input, each).map_or_else(|error| to.send(skipped(error.to_string())), |()| Ok(()))
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Every frame, until `each` has enough.
fn film(input: &Input, mut each: impl FnMut(u64, &str, Frame) -> bool) -> Result<(), FilmError> {
    let mut film = Film::open(input)?;
    let rate = film.rate().to_string();
    let mut number = 0;
    while let Some(frame) = film.frame()? {
        if !each(number, &rate, frame) {
            break;
        }
        number += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::sync_channel;

    use bellows_yolo::data::Levels;
    use bellows_yolo::predict::video::FilmWriter;
    use image::{Rgb, RgbImage};

    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_once_with_one_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, torn) = (dir.path().join("gone.jpg"), dir.path().join("torn.jpg"));
        std::fs::write(&torn, "x").unwrap();
        let (to, shots) = sync_channel(2);
        read(&[Input::Image(gone.clone()), Input::Image(torn.clone())], 1, (&Levels::default().alone(), Stack::default()), &to);
        drop(to);
        let told: Vec<String> = shots.iter().map(|seen| if let Seen::Skipped(reason) = seen { reason } else { "read".into() }).collect();
        assert_eq!(told[0], format!("{}: there is no such file or folder", gone.display()));
        assert_eq!(told[1].matches(&torn.display().to_string()).count(), 1, "{}", told[1]);
    }

    #[test]
    fn a_film_is_stacked_at_the_frames_that_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("film.mp4");
        let mut writer = match FilmWriter::create(&path, (64, 48), "25") {
            Err(FilmError::Absent) => {
                // Past the test runner, which shows what a test prints only if it fails.
                let told = "skipped: no ffmpeg on this machine, a_film_is_stacked_at_the_frames_that_are_looked_at is not run";
                writeln!(std::io::stderr(), "{told}").ok();
                return;
            }
            writer => writer.unwrap(),
        };
        (0..7).for_each(|i| writer.write(&RgbImage::from_pixel(64, 48, Rgb([30 * i; 3]))).unwrap());
        writer.finish().unwrap();
        let (to, shots) = sync_channel(8);
        read(&[Input::Film(path)], 3, (&Levels::default().alone(), Stack { frames: 2, ..Stack::default() }), &to);
        drop(to);
        let seen: Vec<[u8; 2]> = shots
            .iter()
            .map(|seen| if let Seen::Shot(shot, ..) = seen { [0, 1].map(|plane| shot.input().plane(plane)[700]) } else { [0; 2] })
            .collect();
        assert_eq!(seen.len(), 3);
        for (seen, expected) in seen.as_flattened().iter().zip([0, 0, 0, 90, 90, 180_u8]) {
            assert!(seen.abs_diff(expected) < 8, "{seen} for {expected}");
        }
    }
}
