//! Ranks that are processes and reach each other over TCP: one connection between any two, set up by a meeting at rank 0.
//!
//! For tests, and where there is no MPI. A rank that dies closes its connections, which every other one notices at its next exchange; one
//! that says nothing for too long is taken for dead. Nothing is encrypted and nobody is asked who he is: for a network of one's own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Exchange, ExchangeError};

/// Between two attempts to reach a rank that is not there yet.
const AGAIN: Duration = Duration::from_millis(50);

/// Most bytes of a part: what is longer is not from one of us.
const LONGEST: u64 = 1 << 34;

/// Where and how ranks meet.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Where rank 0 waits for the others: `host:port`.
    pub address: String,
    /// How many ranks there are.
    pub ranks: usize,
    /// How long one waits for another, at the meeting and in an exchange.
    pub patience: Duration,
}

/// A rank that is a process.
pub struct Tcp {
    rank: usize,
    /// By rank; none to itself.
    peers: Vec<Option<TcpStream>>,
}

impl Tcp {
    /// Meets the others as `rank`; ends when all are there.
    ///
    /// # Errors
    /// An address that cannot be used or reached, or a rank that does not come in time.
    pub fn meet(meeting: &Meeting, rank: usize) -> Result<Self, ExchangeError> {
        let failed = |e: std::io::Error| ExchangeError::NoMeeting { rank, address: meeting.address.clone(), reason: e.to_string() };
        let peers = peers(meeting, rank).map_err(failed)?;
        for peer in peers.iter().flatten() {
            peer.set_nodelay(true).and_then(|()| peer.set_read_timeout(Some(meeting.patience))).map_err(failed)?;
        }
        Ok(Self { rank, peers })
    }
}

/// A connection to every other rank: rank 0 gathers where each of them listens and tells all; then each calls those before it.
fn peers(meeting: &Meeting, rank: usize) -> std::io::Result<Vec<Option<TcpStream>>> {
    let until = Instant::now() + meeting.patience;
    let mut peers: Vec<Option<TcpStream>> = (0..meeting.ranks).map(|_| None).collect();
    if rank == 0 {
        let listener = TcpListener::bind(&meeting.address)?;
        let mut addresses = vec![String::new(); meeting.ranks];
        for _ in 1..meeting.ranks {
            let (stream, number) = accept(&listener, until)?;
            let port = receive(&stream)?;
            let known = addresses.get_mut(number).filter(|known| number > 0 && known.is_empty());
            let host = stream.peer_addr()?.ip();
            *known.ok_or_else(|| other(format!("rank {number} came twice, or there is no such rank")))? =
                SocketAddr::new(host, String::from_utf8_lossy(&port).parse().unwrap_or(0)).to_string();
            peers[number] = Some(stream);
        }
        let all = addresses.join(" ");
        for peer in peers.iter().flatten() {
            send(peer, all.as_bytes())?;
        }
        return Ok(peers);
    }
    let first = call(&meeting.address, rank, until)?;
    let listener = TcpListener::bind((first.local_addr()?.ip(), 0))?;
    send(&first, listener.local_addr()?.port().to_string().as_bytes())?;
    let all = String::from_utf8_lossy(&receive(&first)?).into_owned();
    peers[0] = Some(first);
    for (number, address) in all.split(' ').enumerate().take(rank).skip(1) {
        peers[number] = Some(call(address, rank, until)?);
    }
    for _ in rank + 1..meeting.ranks {
        let (stream, number) = accept(&listener, until)?;
        *peers.get_mut(number).ok_or_else(|| other(format!("there is no rank {number}")))? = Some(stream);
    }
    Ok(peers)
}

fn other(reason: String) -> std::io::Error {
    std::io::Error::other(reason)
}

/// Reaches a rank that may not be there yet, and says who calls.
fn call(address: &str, rank: usize, until: Instant) -> std::io::Result<TcpStream> {
    loop {
        let found = address.to_socket_addrs()?.next().ok_or_else(|| other(format!("{address} is nowhere")))?;
        match TcpStream::connect_timeout(&found, until.saturating_duration_since(Instant::now()).max(AGAIN)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(until.saturating_duration_since(Instant::now()).max(AGAIN)))?;
                send(&stream, rank.to_string().as_bytes())?;
                return Ok(stream);
            }
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

/// The next rank that calls, and its number.
fn accept(listener: &TcpListener, until: Instant) -> std::io::Result<(TcpStream, usize)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(until.saturating_duration_since(Instant::now()).max(AGAIN)))?;
                let number = receive(&stream)?;
                let number = String::from_utf8_lossy(&number).parse().map_err(|_| other("somebody calls who is no rank".into()))?;
                return Ok((stream, number));
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < until => thread::sleep(AGAIN),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Err(other("not all ranks came in time".into())),
            Err(e) => return Err(e),
        }
    }
}

fn send(mut stream: &TcpStream, part: &[u8]) -> std::io::Result<()> {
    stream.write_all(&(part.len() as u64).to_le_bytes())?;
    stream.write_all(part)
}

fn receive(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > LONGEST {
        return Err(other(format!("{len} bytes are announced")));
    }
    let mut part = Vec::new();
    stream.take(len).read_to_end(&mut part)?;
    if part.len() as u64 == len { Ok(part) } else { Err(other("it ended in the middle of a part".into())) }
}

impl Exchange for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn swap(&self, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let gone = |rank: usize, error: std::io::Error| ExchangeError::Gone { rank, reason: error.to_string() };
        let own = std::mem::take(&mut parts[self.rank]);
        thread::scope(|scope| {
            // All send at once, or two with much to say would wait for each other.
            let sending: Vec<_> =
                self.peers.iter().zip(&parts).map(|(peer, part)| peer.as_ref().map(|peer| scope.spawn(|| send(peer, part)))).collect();
            let receive = |(rank, peer): (usize, &Option<TcpStream>)| match peer {
                Some(peer) => receive(peer).map_err(|error| gone(rank, error)),
                None => Ok(Vec::new()),
            };
            let received: Result<Vec<_>, _> = self.peers.iter().enumerate().map(receive).collect();
            if received.is_err() {
                // Whoever waits for this rank's next word shall not; and no thread of it shall wait for one that does not read.
                self.peers.iter().flatten().for_each(|peer| drop(peer.shutdown(std::net::Shutdown::Both)));
            }
            for (rank, sent) in sending.into_iter().enumerate() {
                if let Some(Ok(Err(error))) = sent.map(thread::ScopedJoinHandle::join)
                    && received.is_ok()
                {
                    return Err(gone(rank, error));
                }
            }
            let mut received = received?;
            received[self.rank] = own;
            Ok(received)
        })
    }
}
