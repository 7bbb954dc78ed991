//! Films and cameras, through the `ffmpeg` program: raw frames over a pipe, one way and the other.
//!
//! Nothing of it is linked: a machine without it cannot read films and says so in one sentence. Frames come as PPM pictures, which carry their
//! size, already turned as the film says; what `ffmpeg` complains of becomes the error.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

use image::RgbImage;
use serde_json::Value;

use super::source::Input;
use crate::data::Frame;
use crate::data::header::MAX_SIDE;

/// Why a film cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilmError {
    /// There is no `ffmpeg`.
    #[error(
        "films and cameras are read by the `ffmpeg` and `ffprobe` programs, which are not installed here (Debian: apt-get install ffmpeg)"
    )]
    Absent,
    /// `ffmpeg` could not.
    #[error("{name}: {reason}")]
    Failed {
        /// The film.
        name: String,
        /// What it said.
        reason: String,
    },
}

/// Frames a second, as a fraction in text, where a film does not tell.
const RATE: &str = "25";
/// What is kept of the complaints.
const MAX_COMPLAINT: u64 = 4096;

/// A running `ffmpeg` and what it complains of.
struct Program {
    child: Child,
    complaint: Option<JoinHandle<String>>,
    name: String,
}

impl Program {
    fn start(command: &mut Command, name: &str) -> Result<Self, FilmError> {
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|e| absent_or(e, name))?;
        // Read beside the frames, or a full pipe would stop the program.
        let complaint = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let read = stderr.by_ref().take(MAX_COMPLAINT).read_to_end(&mut text);
                let rest = std::io::copy(&mut stderr, &mut std::io::sink());
                if read.and(rest).is_err() {
                    tracing::debug!("the complaints of ffmpeg end early");
                }
                String::from_utf8_lossy(&text).trim().replace('\n', "; ")
            })
        });
        Ok(Self { child, complaint, name: name.into() })
    }

    /// Waits for its end. What comes back is what it complained of and went on.
    fn end(&mut self) -> Result<String, FilmError> {
        let status = self.child.wait().map_err(|e| self.failed(e.to_string()))?;
        let complaint = self.complaint.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if status.success() { Ok(complaint) } else { Err(self.failed(if complaint.is_empty() { status.to_string() } else { complaint })) }
    }

    /// Ends it, whatever it is at.
    fn stop(&mut self) {
        // A program that has ended cannot be killed, and that is what is wanted.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Says that it complained, if it did.
    fn tell(&self, complaint: &str) {
        if !complaint.is_empty() {
            tracing::warn!("{}: some of it may be missing: {complaint}", self.name);
        }
    }

    fn failed(&self, reason: String) -> FilmError {
        FilmError::Failed { name: self.name.clone(), reason }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

fn absent_or(error: std::io::Error, name: &str) -> FilmError {
    match error.kind() {
        ErrorKind::NotFound => FilmError::Absent,
        _ => FilmError::Failed { name: name.into(), reason: error.to_string() },
    }
}

/// A file's name as `ffmpeg` takes it for nothing else.
fn local(path: &Path) -> std::ffi::OsString {
    let mut name = std::ffi::OsString::from("file:");
    name.push(path);
    name
}

fn input(command: &mut Command, input: &Input) {
    match input {
        Input::Film(path) | Input::Image(path) => command.arg("-i").arg(local(path)),
        Input::Camera(number) => command.args(["-f", "v4l2", "-i"]).arg(format!("/dev/video{number}")),
        Input::Stream(address) => command.arg("-i").arg(address),
        Input::Bytes(_) => command.args(["-i", "pipe:0"]),
    };
}

/// Asks for every frame of the input, once: left alone, `ffmpeg` repeats and drops frames until they come at a constant rate. The option has had this name
/// since 5.1, and the one before is gone since 9.
fn each_frame_once() -> [&'static str; 2] {
    static WORDS: OnceLock<[&str; 2]> = OnceLock::new();
    *WORDS.get_or_init(|| {
        let words = ["-fps_mode", "passthrough"];
        let mut asked = Command::new("ffmpeg");
        asked.args(words).arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_unknown = asked.status().is_ok_and(|status| !status.success());
        if is_unknown { ["-vsync", "0"] } else { words }
    })
}

/// A film that is being read.
pub struct Film {
    program: Program,
    frames: BufReader<ChildStdout>,
    rate: String,
    /// It has had a frame.
    begun: bool,
}

impl Film {
    /// Starts to read.
    ///
    /// # Errors
    /// [`FilmError`].
    pub fn open(source: &Input) -> Result<Self, FilmError> {
        let name = source.name();
        let rate = if let Input::Film(_) = source { probe(source, &name)? } else { RATE.into() };
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error"]);
        input(&mut command, source);
        // Of more than 8 bits a channel `ffmpeg` would make PPM of 16.
        command.args(["-map", "0:v:0"]).args(each_frame_once()).args(["-pix_fmt", "rgb24", "-f", "image2pipe", "-c:v", "ppm", "-"]);
        Self::reading(&mut command, &name, rate)
    }

    /// The frames that `command` writes.
    fn reading(command: &mut Command, name: &str, rate: String) -> Result<Self, FilmError> {
        let mut program = Program::start(command.stdin(Stdio::null()).stdout(Stdio::piped()), name)?;
        let stdout = program.child.stdout.take().ok_or_else(|| program.failed("no pipe".into()))?;
        Ok(Self { program, frames: BufReader::with_capacity(1 << 20, stdout), rate, begun: false })
    }

    /// Frames a second, as `ffmpeg` writes and reads it: `25` or `30000/1001`.
    pub fn rate(&self) -> &str {
        &self.rate
    }

    /// The next frame, in colour; `None` after the last one.
    ///
    /// # Errors
    /// A film that breaks off, or that has no frame.
    pub fn frame(&mut self) -> Result<Option<Frame>, FilmError> {
        match ppm(&mut self.frames) {
            Ok(Some(frame)) => {
                self.begun = true;
                Ok(Some(frame))
            }
            Ok(None) => {
                let complaint = self.program.end()?;
                if !self.begun {
                    let why = if complaint.is_empty() { complaint } else { format!(": {complaint}") };
                    return Err(self.program.failed(format!("no frame in it can be read{why}")));
                }
                self.program.tell(&complaint);
                Ok(None)
            }
            // It has ended, and may have said why.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(self.program.end().err().unwrap_or_else(|| self.program.failed(error.to_string())))
            }
            // It would wait for ever for somebody to read the rest.
            Err(error) => {
                self.program.stop();
                Err(self.program.failed(error.to_string()))
            }
        }
    }
}

/// Frames a second, as the film says.
fn probe(source: &Input, name: &str) -> Result<String, FilmError> {
    let mut command = Command::new("ffprobe");
    command.args(["-v", "error", "-select_streams", "v:0", "-show_entries", "stream=avg_frame_rate", "-of", "json"]);
    input(&mut command, source);
    let output = command.stdin(Stdio::null()).output().map_err(|e| absent_or(e, name))?;
    let fault = |reason: String| FilmError::Failed { name: name.into(), reason };
    if !output.status.success() {
        return Err(fault(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")));
    }
    let facts: Value = serde_json::from_slice(&output.stdout).map_err(|e| fault(format!("ffprobe's answer: {e}")))?;
    let stream = facts["streams"].get(0).ok_or_else(|| fault("there is no picture in it".into()))?;
    Ok(stream["avg_frame_rate"].as_str().filter(|r| !r.starts_with('0')).unwrap_or(RATE).into())
}

/// One binary PPM picture (`P6`, three numbers, bytes), or none at the end.
fn ppm(from: &mut impl Read) -> std::io::Result<Option<Frame>> {
    let invalid = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_string());
    let mut byte = [0u8; 1];
    if from.read(&mut byte)? == 0 {
        return Ok(None);
    }
    let mut words = vec![vec![byte[0]]];
    // Magic, width, height and maximum, each followed by one white byte.
    while words.len() < 5 {
        from.read_exact(&mut byte)?;
        match words.last_mut() {
            Some(word) if !byte[0].is_ascii_whitespace() && word.len() < 8 => word.push(byte[0]),
            _ => words.push(Vec::new()),
        }
    }
    let number = |word: &[u8]| std::str::from_utf8(word).ok().and_then(|w| w.parse::<usize>().ok());
    let (Some(width), Some(height), Some(most)) = (number(&words[1]), number(&words[2]), number(&words[3])) else {
        return Err(invalid("a frame has no size"));
    };
    if most != 255 {
        return Err(invalid(&format!("a frame has levels up to {most}, not 255")));
    }
    if words[0] != b"P6" || width.max(height) > MAX_SIDE as usize || width * height == 0 {
        return Err(invalid("a frame is no picture that can be read"));
    }
    let mut pixels = vec![0; width * height * 3];
    from.read_exact(&mut pixels)?;
    let plane = |c: usize| pixels.iter().skip(c).step_by(3).copied();
    let planar = (0..3).flat_map(plane).collect();
    Ok(Some(Frame { pixels: planar, channels: 3, width, height, difference: false }))
}

/// A film that is being written.
pub struct FilmWriter {
    program: Program,
    pipe: Option<ChildStdin>,
    size: (u32, u32),
}

impl FilmWriter {
    /// Begins an MP4 file (H.264 where `ffmpeg` has it, else its own choice) with frames of this size.
    ///
    /// # Errors
    /// [`FilmError`].
    pub fn create(path: &Path, size: (u32, u32), rate: &str) -> Result<Self, FilmError> {
        let mut command = Command::new("ffmpeg");
        let frame = format!("{}x{}", size.0, size.1);
        command.args(["-nostdin", "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", &frame, "-r", rate, "-i", "pipe:0"]);
        // Players want even sides and this pixel format.
        command.args(["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]).arg(local(path)).stdin(Stdio::piped());
        let mut program = Program::start(command.stdout(Stdio::null()), &path.display().to_string())?;
        let pipe = program.child.stdin.take();
        Ok(Self { program, pipe, size })
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// A frame of another size, or an `ffmpeg` that gave up.
    pub fn write(&mut self, frame: &RgbImage) -> Result<(), FilmError> {
        if frame.dimensions() != self.size {
            return Err(self.program.failed(format!("a frame of {:?} in a film of {:?}", frame.dimensions(), self.size)));
        }
        let written = self.pipe.as_mut().map_or(Ok(()), |pipe| pipe.write_all(frame.as_raw()));
        written.map_err(|error| {
            self.pipe = None;
            self.program.end().err().unwrap_or_else(|| self.program.failed(error.to_string()))
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(mut self) -> Result<(), FilmError> {
        self.pipe = None;
        self.program.end().map(|complaint| self.program.tell(&complaint))
    }
}

/// One that is left before it is finished is ended too: without what `ffmpeg` writes last, nothing of the file can be played.
impl Drop for FilmWriter {
    fn drop(&mut self) {
        self.pipe = None;
        // Why it is left has been told already, and is what matters.
        self.program.end().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Past the test runner, which shows what a test prints only if it fails.
    fn not_run(test: &str) {
        writeln!(std::io::stderr(), "skipped: no ffmpeg on this machine, {test} is not run").ok();
    }

    #[test]
    fn pictures_follow_each_other_in_a_pipe() {
        let mut stream: Vec<u8> = b"P6\n2 1\n255\n".iter().chain(&[1, 2, 3, 4, 5, 6]).copied().collect();
        stream.extend(stream.clone());
        let mut stream = stream.as_slice();
        for _ in 0..2 {
            let frame = ppm(&mut stream).unwrap().unwrap();
            assert_eq!((frame.width, frame.height, frame.pixels), (2, 1, vec![1, 4, 2, 5, 3, 6]));
        }
        assert!(ppm(&mut stream).unwrap().is_none());
        for broken in [
            &b"P6\n2 1\n255\n\x01"[..],
            b"P5\n2 1\n255\n123456",
            b"P6\n99999 1\n255\n",
            b"P6\nx 1\n255\n123",
            b"P6 0 0 255 ",
            b"P6\n2 1\n65535\n123456123456",
        ] {
            assert!(ppm(&mut &*broken).is_err(), "{:?}", String::from_utf8_lossy(broken));
        }
    }

    #[test]
    fn a_film_goes_there_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a film.mp4");
        let mut writer = match FilmWriter::create(&path, (64, 48), "30000/1001") {
            Err(FilmError::Absent) => return not_run("a_film_goes_there_and_back"),
            writer => writer.unwrap(),
        };
        for i in 0..5u8 {
            writer.write(&RgbImage::from_pixel(64, 48, image::Rgb([i * 40, 100, 200]))).unwrap();
        }
        writer.finish().unwrap();
        let mut film = Film::open(&Input::Film(path.clone())).unwrap();
        assert_eq!(film.rate(), "30000/1001");
        for i in 0..5u8 {
            let frame = film.frame().unwrap().unwrap();
            assert_eq!((frame.width, frame.height), (64, 48));
            assert!((f32::from(frame.plane(0)[700]) - f32::from(i * 40)).abs() < 8.0, "{i}: {}", frame.plane(0)[700]);
        }
        assert!(film.frame().unwrap().is_none());
        std::fs::write(&path, b"not a film").unwrap();
        let refusal = Film::open(&Input::Film(path)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refusal.contains("a film.mp4"), "{refusal}");
    }

    #[cfg(unix)]
    #[test]
    fn a_film_that_is_left_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("film");
        let mut command = Command::new("sh");
        command.args(["-c", "cat > \"$0\"; echo end >> \"$0\""]).arg(&path).stdin(Stdio::piped());
        let mut program = Program::start(&mut command, "film").unwrap();
        let pipe = program.child.stdin.take();
        let mut writer = FilmWriter { program, pipe, size: (1, 1) };
        writer.write(&RgbImage::from_pixel(1, 1, image::Rgb(*b"abc"))).unwrap();
        drop(writer);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "abcend\n");
    }

    /// What stands in the middle of each frame of a film that holds these bytes; none without `ffmpeg`.
    fn grays(name: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut film = match Film::open(&Input::Film(path)) {
            Err(FilmError::Absent) => return None,
            film => film.unwrap(),
        };
        let next = || film.frame().unwrap().map(|frame| frame.plane(0)[frame.width * frame.height / 2]);
        Some(std::iter::from_fn(next).collect())
    }

    #[test]
    fn a_film_of_more_than_8_bits_is_read() {
        // Of 10 bits a sample: black, gray and white of film, which are 64, 502 and 940.
        let mut bytes = b"YUV4MPEG2 W8 H8 F25:1 C420p10\n".to_vec();
        for luma in [64_u16, 502, 940] {
            bytes.extend(b"FRAME\n");
            bytes.extend([luma.to_le_bytes(); 64].as_flattened());
            bytes.extend([512_u16.to_le_bytes(); 32].as_flattened());
        }
        let Some(grays) = grays("deep.y4m", &bytes) else { return not_run("a_film_of_more_than_8_bits_is_read") };
        assert!(grays.len() == 3 && grays.iter().zip([0, 128, 255]).all(|(seen, gray)| seen.abs_diff(gray) < 5), "{grays:?}");
    }

    #[test]
    fn a_film_whose_rate_varies_has_the_frames_that_it_has() {
        // A GIF of black and white pictures of 4x4 pixels, in turn, which stand for so many hundredths of a second.
        let mut bytes = b"GIF89a\x04\0\x04\0\x80\0\0\0\0\0\xff\xff\xff".to_vec();
        for (i, time) in [10, 100, 10, 50, 10].into_iter().enumerate() {
            bytes.extend(b"!\xf9\x04\0".iter().chain(&[time, 0, 0, 0]).chain(b",\0\0\0\0\x04\0\x04\0\0\x02"));
            let pixels = [b"\x0a\x04\x08\x10\x20\x40\x80\0\x01\x02\x05\0", b"\x0a\x4c\x98\x30\x61\xc2\x84\x09\x13\x26\x05\0"];
            bytes.extend(pixels[i % 2]);
        }
        bytes.push(b';');
        let Some(grays) = grays("varies.gif", &bytes) else { return not_run("a_film_whose_rate_varies_has_the_frames_that_it_has") };
        assert_eq!(grays, [0, 255, 0, 255, 0]);
    }

    /// A film that is damaged makes `ffmpeg` complain, leave frames out, and end as if all were well.
    #[cfg(unix)]
    #[test]
    fn what_a_damaged_film_lacks_is_told() {
        let reading = |script: &str| Film::reading(Command::new("sh").args(["-c", script]), "damaged.mp4", RATE.into()).unwrap();
        let mut film = reading("printf 'P6 1 1 255 abc'; echo torn >&2");
        assert!(film.frame().unwrap().is_some());
        assert_eq!(film.program.end().unwrap(), "torn");
        for (script, why) in [("echo torn >&2", ": torn"), ("true", "")] {
            let refusal = reading(script).frame().unwrap_err().to_string();
            assert_eq!(refusal, format!("damaged.mp4: no frame in it can be read{why}"));
        }
    }

    /// It writes on and on: a reader that waited for its end would wait for ever.
    #[cfg(unix)]
    #[test]
    fn a_program_whose_pictures_are_none_is_ended() {
        let (to, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut film = Film::reading(Command::new("yes").arg("P6 2 1 65535"), "deep.mp4", RATE.into()).unwrap();
            to.send(film.frame().unwrap_err().to_string())
        });
        let said = told.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(said.as_deref(), Ok("deep.mp4: a frame has levels up to 65535, not 255"));
    }
}
