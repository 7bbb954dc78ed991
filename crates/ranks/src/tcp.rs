//! Ranks that are processes and reach each other over TCP: one connection between any two, set up by a meeting at rank 0.
//!
//! A rank that dies closes its connections, which every other one notices at its next exchange; one that says nothing for too long is taken
//! for dead. One that works for long by itself gives signs of life meanwhile. Nothing is encrypted and nobody is asked who he is: for a network
//! of one's own.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Exchange, ExchangeError};

/// Between two looks for a rank that is not there yet.
const AGAIN: Duration = Duration::from_millis(20);

/// How long an address may take to answer: who drops what he is sent answers never, and a name may have another one.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a rank is called before why it does not answer is told: a wrong address never does. Half the time there is, if that is less.
const QUIET: Duration = Duration::from_secs(10);

/// How long a caller may take to say who it is: who does not is no rank.
const GREETING: Duration = Duration::from_secs(5);

/// What every caller says first, before its rank and how many there are.
const WORD: &str = "bellows rank";

/// What a rank hears in place of addresses, if another process has come as the same one since.
const TWICE: &str = "twice";

/// Most bytes of a greeting.
const GREETING_BYTES: u64 = 64;

/// Most bytes of a part: what is longer is not from one of us.
const LONGEST: u64 = 1 << 34;

/// Instead of the length of a part: a sign of life.
const SIGN: u64 = u64::MAX;

/// Signs of life in the time that one waits for another: few enough to lie unread for days, and so many that who gives none for as long has hardly
/// done anything.
const SIGNS: u32 = 100;

/// A rank that is a process.
pub struct Tcp {
    rank: usize,
    /// By rank; none to itself.
    peers: Vec<Option<TcpStream>>,
    /// Called when an exchange begins, and when another one gives a sign of life.
    heard: fn(),
    signs: Mutex<Signs>,
    /// Why an exchange failed: whoever tries the next one is told of the rank that was lost, and not of those whose connections were closed for it.
    broken: Mutex<Option<ExchangeError>>,
}

/// The signs of life of this rank.
#[derive(Default)]
struct Signs {
    /// Least time between two; none are given before it is known.
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Tcp {
    /// Rank 0 of so many: waits at `listener` until all others have come. `given_up` is asked meanwhile, and why it says so is the error.
    ///
    /// # Errors
    /// A rank that belongs to another number of ranks; a network that fails; what `given_up` says.
    pub fn host(listener: &TcpListener, ranks: usize, given_up: &dyn Fn() -> Option<String>) -> std::result::Result<Self, ExchangeError> {
        let address = listener.local_addr().map_or_else(|_| "its port".into(), |address| address.to_string());
        let no_meeting = |e: Error| ExchangeError::NoMeeting { rank: 0, address: address.clone(), reason: e.to_string() };
        Ok(Self::of(0, host(listener, ranks, given_up).map_err(no_meeting)?))
    }

    /// Another one of so many: calls rank 0 at `address` (`host:port`), for so long if need be. Why a rank has not answered for some time is given to
    /// `tell`, once.
    ///
    /// # Errors
    /// An address that cannot be reached in time, a network that fails, another process that comes as the same rank.
    pub fn join(
        address: &str,
        rank: usize,
        ranks: usize,
        patience: Duration,
        tell: &dyn Fn(&str),
    ) -> std::result::Result<Self, ExchangeError> {
        let no_meeting = |e: Error| ExchangeError::NoMeeting { rank, address: address.into(), reason: e.to_string() };
        Ok(Self::of(rank, join(address, is_here(address), rank, ranks, Instant::now() + patience, tell).map_err(no_meeting)?))
    }

    fn of(rank: usize, peers: Vec<Option<TcpStream>>) -> Self {
        Self { rank, peers, heard: || {}, signs: Mutex::default(), broken: Mutex::default() }
    }

    /// Calls `heard` whenever an exchange begins, and whenever a rank that this one waits for gives a sign of life: to wait for it is no hanging. Who
    /// has worked for long before an exchange would else be taken for hung while it waits, by a clock that began with that work.
    #[must_use]
    pub fn hearing(self, heard: fn()) -> Self {
        Self { heard, ..self }
    }
}

/// Waits where the others call rank 0: at `address`, `host:port`. Of a name that is every address of this machine, for a name may stand for another one here
/// than elsewhere (Debian's own machine is 127.0.1.1 in its hosts file, a service's or a router's address is none of this machine's).
///
/// # Errors
/// A name that is none, a port that is taken.
pub fn listen(address: &str) -> Result<TcpListener> {
    if is_here(address) || literal(address).is_some() {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            bound => return bound,
        }
    }
    let found = address.to_socket_addrs()?.next().ok_or_else(|| Error::other("there is no such address"))?;
    everywhere(found.port())
}

/// At all addresses of this machine, of both kinds where the system allows that.
fn everywhere(port: u16) -> Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        bound => bound,
    }
}

/// The address that `host:port` begins with, where that is no name.
fn literal(address: &str) -> Option<IpAddr> {
    address.rsplit_once(':')?.0.trim_matches(['[', ']']).parse().ok()
}

/// Whether whoever calls there is on this machine (RFC 6761: `localhost` is nothing else).
fn is_here(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost") || literal(address).is_some_and(|address| address.is_loopback())
}

/// Rank 0 learns where each of the others listens, and tells all. Who lives on its own machine may be known to it by an address that is of no use
/// elsewhere: of that one only the port is told, and it is called where rank 0 was.
fn host(listener: &TcpListener, ranks: usize, given_up: &dyn Fn() -> Option<String>) -> Result<Vec<Option<TcpStream>>> {
    let mut peers: Vec<Option<TcpStream>> = (0..ranks).map(|_| None).collect();
    let mut addresses = vec![String::new(); ranks];
    let mut twice = None;
    loop {
        // One that has died while others still came is not there, and comes for itself when it is started again.
        for peer in &mut peers {
            peer.take_if(|peer| !is_open(peer));
        }
        if peers.iter().flatten().count() + 1 == ranks {
            break;
        }
        let (stream, rank) = accept(listener, ranks, given_up).map_err(|error| match twice {
            Some(rank) => Error::other(format!("{error}; rank {rank} came twice")),
            None => error,
        })?;
        if rank == 0 {
            return Err(Error::other("rank 0 is there twice"));
        }
        // One that has ended since comes again, or not in time.
        let (Ok(port), Ok(from)) = (receive(&stream, GREETING_BYTES), stream.peer_addr()) else { continue };
        let (port, from): (u16, _) = (text(port).parse().map_err(Error::other)?, from.ip().to_canonical());
        addresses[rank] = if from.is_loopback() { format!(":{port}") } else { SocketAddr::new(from, port).to_string() };
        // The one before may have been on a machine that lost its power, which closes nothing. One that is there hears of it.
        if let Some(before) = peers[rank].replace(stream).filter(is_open) {
            send(&before, TWICE.as_bytes()).ok();
            twice = Some(rank);
        }
    }
    let all = addresses.join(" ");
    for peer in peers.iter().flatten() {
        send(peer, all.as_bytes())?;
    }
    settled(peers)
}

/// Whether the other end of a connection has not closed it, as far as can be seen: what it said before that comes first.
fn is_open(stream: &TcpStream) -> bool {
    let there = || match stream.peek(&mut [0]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(true).is_ok() && there() && stream.set_nonblocking(false).is_ok()
}

/// The others call rank 0, learn where the rest listens, call those before them and hear those behind, which may be on this machine alone (`here`) or not.
fn join(address: &str, here: bool, rank: usize, ranks: usize, until: Instant, tell: &dyn Fn(&str)) -> Result<Vec<Option<TcpStream>>> {
    let late = || (Instant::now() >= until).then(|| "not all ranks came in time".to_string());
    let mut peers: Vec<Option<TcpStream>> = (0..ranks).map(|_| None).collect();
    let first = call(address, rank, ranks, until, tell)?;
    let listener = if here { TcpListener::bind((first.local_addr()?.ip(), 0))? } else { everywhere(0)? };
    send(&first, listener.local_addr()?.port().to_string().as_bytes())?;
    let all = text(addresses_of_all(&first, until, tell)?);
    if all == TWICE {
        return Err(Error::other(format!("rank {rank} is there twice: another process has come as the same one")));
    }
    peers[0] = Some(first);
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    for (number, address) in all.split(' ').enumerate().take(rank).skip(1) {
        let address = if address.starts_with(':') { format!("{host}{address}") } else { address.into() };
        peers[number] = Some(call(&address, rank, ranks, until, tell)?);
    }
    for _ in rank + 1..ranks {
        let (stream, number) = accept(&listener, ranks, &late)?;
        peers[number] = Some(stream);
    }
    settled(peers)
}

/// What rank 0 says when all have come: where they listen. It may wait for another one for long, which is told.
fn addresses_of_all(first: &TcpStream, until: Instant, tell: &dyn Fn(&str)) -> Result<Vec<u8>> {
    let in_words = |error: Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::other("rank 0 is there, but not all ranks came in time"),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            Error::other("rank 0 was there, and has closed the connection before all had come: it says why")
        }
        _ => error,
    };
    let left = || until.saturating_duration_since(Instant::now()).max(AGAIN);
    first.set_read_timeout(Some(QUIET.min(left() / 2)))?;
    if first.peek(&mut [0]).is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)) {
        tell("rank 0 is there, and waits for other ranks");
    }
    first.set_read_timeout(Some(left()))?;
    receive(first, LONGEST).map_err(in_words)
}

/// Connections as an exchange wants them: no delay, and no limit but the one it sets.
fn settled(peers: Vec<Option<TcpStream>>) -> Result<Vec<Option<TcpStream>>> {
    for peer in peers.iter().flatten() {
        peer.set_nodelay(true)?;
        peer.set_read_timeout(None)?;
    }
    Ok(peers)
}

/// Reaches a rank that may not be there yet, and says who calls.
fn call(address: &str, rank: usize, ranks: usize, until: Instant, tell: &dyn Fn(&str)) -> Result<TcpStream> {
    let begun = Instant::now();
    let mut quiet = Some(QUIET.min(until.saturating_duration_since(begun) / 2));
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(AGAIN);
        match reach(address, left.min(ANSWER)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(left))?;
                send(&stream, format!("{WORD} {rank} of {ranks}").as_bytes())?;
                return Ok(stream);
            }
            Err(error) => {
                let is_last = Instant::now() >= until;
                if quiet.take_if(|quiet| begun.elapsed() >= *quiet).is_some() {
                    let again = if is_last { "" } else { ", which is tried again" };
                    tell(&format!("no rank at {address} yet{again}: {error}"));
                }
                if is_last {
                    return Err(error);
                }
                thread::sleep(AGAIN);
            }
        }
    }
}

/// The first of the addresses of a name that answers within so long.
fn reach(address: &str, within: Duration) -> Result<TcpStream> {
    let mut reached = Err(Error::other("there is no such address"));
    for found in address.to_socket_addrs()? {
        reached = TcpStream::connect_timeout(&found, within);
        if reached.is_ok() {
            break;
        }
    }
    reached
}

/// The next rank that calls, and its number. Who says something else is sent away: on a network somebody always knocks at ports.
fn accept(listener: &TcpListener, ranks: usize, given_up: &dyn Fn() -> Option<String>) -> Result<(TcpStream, usize)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(GREETING))?;
                let greeting = receive(&stream, GREETING_BYTES).map(text).unwrap_or_default();
                let Some((rank, of)) = greeting.strip_prefix(WORD).and_then(|numbers| numbers.trim().split_once(" of ")) else { continue };
                match (rank.parse::<usize>(), of.parse::<usize>()) {
                    (Ok(rank), Ok(of)) if of == ranks && rank < ranks => return Ok((stream, rank)),
                    _ => return Err(Error::other(format!("rank {rank} of {of} comes to a meeting of {ranks}"))),
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => match given_up() {
                Some(reason) => return Err(Error::other(reason)),
                None => thread::sleep(AGAIN),
            },
            Err(e) => return Err(e),
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn send(mut stream: &TcpStream, part: &[u8]) -> Result<()> {
    stream.write_all(&(part.len() as u64).to_le_bytes())?;
    stream.write_all(part)
}

fn receive(stream: &TcpStream, most: u64) -> Result<Vec<u8>> {
    part(stream, length(stream)?, most)
}

fn length(mut stream: &TcpStream) -> Result<u64> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    Ok(u64::from_le_bytes(len))
}

fn part(stream: &TcpStream, len: u64, most: u64) -> Result<Vec<u8>> {
    if len > most {
        return Err(Error::other(format!("{len} bytes are announced")));
    }
    let mut part = Vec::new();
    stream.take(len).read_to_end(&mut part)?;
    if part.len() as u64 == len { Ok(part) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// What has become of the other end of a connection that has failed.
fn gone(rank: usize, peer: Option<&TcpStream>, error: &Error) -> ExchangeError {
    let limit = || peer.and_then(|peer| peer.read_timeout().ok()?).unwrap_or_default();
    let reason = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => return ExchangeError::Silent { rank, seconds: limit().as_secs_f64() },
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "it has ended".into(),
        _ => error.to_string(),
    };
    ExchangeError::Gone { rank, reason }
}

impl Tcp {
    /// The next part that this one gives, after however many signs of life: each is waited for as long as a part.
    fn hear(&self, peer: &TcpStream) -> Result<Vec<u8>> {
        loop {
            match length(peer)? {
                SIGN => (self.heard)(),
                len => return part(peer, len, LONGEST),
            }
        }
    }
}

impl Exchange for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        Some(self)
    }

    fn wait_at_most(&self, patience: Duration) {
        // A connection that takes no limit is closed, which the next exchange finds out. Who does not read is as silent as who does not speak.
        for peer in self.peers.iter().flatten() {
            let patience = Some(patience.max(AGAIN));
            drop((peer.set_read_timeout(patience), peer.set_write_timeout(patience)));
        }
        self.signs.lock().unwrap_or_else(PoisonError::into_inner).every = Some(patience / SIGNS);
    }

    fn sign_of_life(&self) {
        let mut signs = self.signs.lock().unwrap_or_else(PoisonError::into_inner);
        if signs.every.is_none_or(|every| signs.last.is_some_and(|last| last.elapsed() < every)) {
            return;
        }
        signs.last = Some(Instant::now());
        for mut peer in self.peers.iter().flatten() {
            if peer.write_all(&SIGN.to_le_bytes()).is_err() {
                // Half a sign would be taken for something else; the next exchange finds out.
                drop(peer.shutdown(Shutdown::Both));
            }
        }
    }

    fn swap(&self, parts: &[&[u8]]) -> std::result::Result<Vec<Vec<u8>>, ExchangeError> {
        (self.heard)();
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = &*broken {
            return Err(first.clone());
        }
        let swapped = self.exchange(parts);
        *broken = swapped.as_ref().err().cloned();
        swapped
    }
}

impl Tcp {
    fn exchange(&self, parts: &[&[u8]]) -> std::result::Result<Vec<Vec<u8>>, ExchangeError> {
        thread::scope(|scope| {
            // All send at once, or two with much to say would wait for each other.
            let sending: Vec<_> =
                self.peers.iter().zip(parts).map(|(peer, part)| peer.as_ref().map(|peer| scope.spawn(|| send(peer, part)))).collect();
            let receive = |(rank, peer): (usize, &Option<TcpStream>)| match peer {
                Some(peer) => self.hear(peer).map_err(|error| gone(rank, Some(peer), &error)),
                None => Ok(parts[rank].to_vec()),
            };
            let received = self.peers.iter().enumerate().map(receive).collect::<std::result::Result<Vec<_>, _>>();
            if received.is_err() {
                // Whoever waits for this rank's next word shall not; and no thread of it shall wait for one that does not read.
                self.peers.iter().flatten().for_each(|peer| drop(peer.shutdown(Shutdown::Both)));
            }
            let sent = sending.into_iter().enumerate().filter_map(|(rank, sent)| Some((rank, sent?.join().ok()?.err()?))).next();
            match (received, sent) {
                (Ok(_), Some((rank, error))) => Err(gone(rank, self.peers[rank].as_ref(), &error)),
                (received, _) => received,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// As with a hosts file in which a machine's own name is a loopback address: the second calls rank 0 there, the third from elsewhere (on Linux all
    /// of 127.0.0.0/8 is this machine).
    #[test]
    #[cfg(target_os = "linux")]
    fn ranks_that_know_the_first_by_different_addresses_meet() {
        let listener = &everywhere(0).unwrap();
        let (port, until) = (listener.local_addr().unwrap().port(), Instant::now() + Duration::from_secs(20));
        thread::scope(|scope| {
            let first = scope.spawn(move || Tcp::host(listener, 3, &|| None).unwrap().gather(&[0]).unwrap());
            let others = [(1, "127.0.0.1"), (2, "127.0.0.2")].map(|(rank, host)| {
                scope.spawn(move || {
                    let peers = join(&format!("{host}:{port}"), false, rank, 3, until, &|_| {}).unwrap();
                    Tcp::of(rank, peers).gather(&[rank as u8]).unwrap()
                })
            });
            let all = [first].into_iter().chain(others).map(|rank| rank.join().unwrap());
            assert!(all.into_iter().all(|gathered| gathered == [[0], [1], [2]]));
        });
    }

    /// It has called, said where it listens, and ended before the third came, which comes before it comes again.
    #[test]
    fn a_rank_that_dies_before_all_have_come_may_come_again() {
        let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, until) = (listener.local_addr().unwrap().to_string(), Instant::now() + Duration::from_secs(20));
        let late = || (Instant::now() >= until).then(|| "late".to_string());
        let dies = call(&address, 1, 3, until, &|_| {}).unwrap();
        send(&dies, b"1").unwrap();
        drop(dies);
        thread::scope(|scope| {
            let first = scope.spawn(move || Tcp::host(listener, 3, &late).unwrap().gather(&[0]).unwrap());
            let others = [2, 1].map(|rank| {
                let address = address.clone();
                // The connection of the third is made first.
                thread::sleep(Duration::from_millis(300 * u64::from(rank == 1)));
                let join = move || Tcp::join(&address, rank, 3, Duration::from_secs(20), &|_| {}).unwrap();
                scope.spawn(move || join().gather(&[rank as u8]).unwrap())
            });
            let all = [first].into_iter().chain(others).map(|rank| rank.join().unwrap());
            assert!(all.into_iter().all(|gathered| gathered == [[0], [1], [2]]));
        });
    }

    /// The first of them may be on a machine that has lost its power: nothing tells that connection from one of a rank that waits.
    #[test]
    fn of_two_that_come_as_one_rank_the_second_has_the_place() {
        let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, patience) = (listener.local_addr().unwrap().to_string(), Duration::from_secs(20));
        let until = Instant::now() + patience;
        let join = |rank: usize| {
            let joined = Tcp::join(&address, rank, 3, patience, &|_| {});
            joined.map_err(|error| error.to_string()).map(|joined| joined.gather(&[rank as u8]).unwrap())
        };
        let (join, (came, comes)) = (&join, mpsc::channel());
        thread::scope(|scope| {
            let late = move || (Instant::now() >= until).then(|| "late".to_string());
            let first = scope.spawn(move || Tcp::host(listener, 3, &late).unwrap().gather(&[0]).unwrap());
            for _ in 0..2 {
                let came = came.clone();
                scope.spawn(move || came.send(join(1)).unwrap());
            }
            let refused = comes.recv().unwrap().unwrap_err();
            assert!(refused.ends_with("rank 1 is there twice: another process has come as the same one"), "{refused}");
            let all = [join(2).unwrap(), first.join().unwrap(), comes.recv().unwrap().unwrap()];
            assert!(all.into_iter().all(|gathered| gathered == [[0], [1], [2]]));
        });
        // And where another one never comes, rank 0 says so, too.
        let _both = [(), ()].map(|()| {
            let stream = call(&address, 1, 3, until, &|_| {}).unwrap();
            send(&stream, b"1").unwrap();
            stream
        });
        let until = Instant::now() + Duration::from_millis(300);
        let late = || (Instant::now() >= until).then(|| "not all ranks came".to_string());
        let alone = Tcp::host(listener, 3, &late).err().unwrap().to_string();
        assert!(alone.ends_with("not all ranks came; rank 1 came twice"), "{alone}");
    }

    #[test]
    fn rank_0_waits_where_it_was_told_to() {
        let at = |address: &str| listen(address).unwrap().local_addr().unwrap().ip();
        assert!(at("127.0.0.1:0").is_loopback() && at("localhost:0").is_loopback(), "an address of this machine is kept to");
        // One of documentation (RFC 5737), which no machine has: behind a router rank 0 has another than the one it is called at.
        assert!(at("192.0.2.1:0").is_unspecified());
        assert!(listen("no.such.host.invalid:1").is_err() && listen("nonsense").is_err());
    }
}
