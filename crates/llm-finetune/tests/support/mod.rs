//! A hub of models on this machine, as the Hugging Face Hub answers: redirects, entity tags, ranges.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The range that is asked for to learn how long a file is; one that is downloaded has no end.
pub const SIZE: &str = "0-0";

/// Models, their files, and what goes wrong with the weights.
#[derive(Default)]
pub struct Shelf {
    /// By `owner/name/file`, those of data sets by `datasets/owner/name/file`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Requests, as `path range`.
    pub log: Vec<String>,
    /// The next download of weights breaks off in the middle.
    pub cut: bool,
    /// Downloads of weights have one wrong byte.
    pub damaged: bool,
    /// The end of the name of files that are listed and not given.
    pub withheld: Option<&'static str>,
}

/// A server that answers until the test ends.
pub struct FakeHub {
    pub endpoint: String,
    pub shelf: Arc<Mutex<Shelf>>,
}

impl FakeHub {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        let (shared, own) = (shelf.clone(), endpoint.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, own) = (shared.clone(), own.clone());
                std::thread::spawn(move || answer(&stream.unwrap(), &shared, &own));
            }
        });
        Self { endpoint, shelf }
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shelf.lock().unwrap().log)
    }
}

fn answer(stream: &TcpStream, shelf: &Mutex<Shelf>, endpoint: &str) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let mut range = String::new();
    for line in lines.by_ref().take_while(|l| !l.is_empty()) {
        if let Some(asked) = line.to_lowercase().strip_prefix("range: bytes=") {
            range = asked.to_owned();
        }
    }
    let start: usize = range.split_once('-').map_or(0, |(start, _)| start.parse().unwrap());
    let mut shelf = shelf.lock().unwrap();
    shelf.log.push(format!("{path} {range}"));
    // A client that has seen enough closes the connection.
    let _ = reply(stream, &path, start, range == SIZE, &mut shelf, endpoint);
}

/// One that is `sized` is for the size alone.
fn reply(mut out: &TcpStream, path: &str, start: usize, sized: bool, shelf: &mut Shelf, endpoint: &str) -> std::io::Result<()> {
    // The one commit has two names.
    let path = path.replace(COMMIT, "main");
    let mut head = |status: &str, headers: &str, length: usize| {
        write!(out, "HTTP/1.1 {status}\r\nConnection: close\r\nX-Repo-Commit: {COMMIT}\r\n{headers}Content-Length: {length}\r\n\r\n")
    };
    if path.contains("/private") {
        return head("401 Unauthorized", "", 0);
    }
    let api = |kind: &str| path.strip_prefix(kind).and_then(|p| p.strip_suffix("/revision/main"));
    let repo = api("/api/models/").map(String::from).or_else(|| api("/api/datasets/").map(|name| format!("datasets/{name}")));
    if let Some(repo) = repo {
        let names = shelf.files.keys().filter_map(|key| key.strip_prefix(&format!("{repo}/")));
        let siblings: Vec<_> = names.map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
        if siblings.is_empty() {
            return head("404 Not Found", "", 0);
        }
        let body = format!("{{\"id\": \"{repo}\", \"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", siblings.join(", "));
        head("200 OK", "Content-Type: application/json\r\n", body.len())?;
        return out.write_all(body.as_bytes());
    }
    let asked = path.trim_start_matches("/cdn").trim_start_matches("/small").trim_start_matches('/').replace("/resolve/main/", "/");
    let Some(file) = shelf.files.get(&asked).cloned() else { return head("404 Not Found", "", 0) };
    let large = asked.ends_with(".safetensors") || asked.ends_with(".gguf");
    if path.contains("/resolve/main/") {
        if path.contains("/gated/") || shelf.withheld.is_some_and(|name| asked.ends_with(name)) {
            return head("403 Forbidden", "", 0);
        }
        // Weights lie with somebody else; the rest is a step further on the same host.
        let sha: String = Sha256::digest(&file).iter().map(|b| format!("{b:02x}")).collect();
        return match large {
            true => head("302 Found", &format!("Location: {endpoint}/cdn/{asked}\r\nX-Linked-Etag: \"{sha}\"\r\n"), 0),
            false => head("307 Temporary Redirect", &format!("Location: /small/{asked}\r\n"), 0),
        };
    }
    let size = file.len();
    if start >= size {
        return head("416 Range Not Satisfiable", "", 0);
    }
    let headers = format!("ETag: \"{}\"\r\nContent-Range: bytes {start}-{}/{size}\r\n", tag(&asked), size - 1);
    head("206 Partial Content", &headers, size - start)?;
    let mut body = file[start..].to_vec();
    if large && shelf.damaged {
        body[0] ^= 1;
    }
    if large && start == 0 && shelf.cut && !sized {
        shelf.cut = false;
        body.truncate(body.len() / 2);
    }
    out.write_all(&body)
}

/// A tag of 40 digits, as git's hashes are.
fn tag(name: &str) -> String {
    Sha256::digest(name).iter().take(20).map(|b| format!("{b:02x}")).collect()
}
