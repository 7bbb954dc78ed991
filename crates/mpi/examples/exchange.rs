//! How long ranks take to add up so many numbers, over TCP: `exchange RANK RANKS HOST:PORT NUMBERS [WIRE [TIMES]]`, once for each rank. Rank 0 prints
//! `ranks,bytes of a number,numbers,seconds`, the median. With the feature `mpi`, a process that `mpirun` has started exchanges over MPI, whatever it is told of rank,
//! ranks and address. docs/cluster.sh runs it in network namespaces whose links are as slow as one likes.
#![allow(clippy::print_stdout, reason = "it measures")]

use std::error::Error;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use bellows_ranks::{Exchange, Tcp, Wire};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rank, ranks, address, numbers, more @ ..] = &args[..] else {
        return Err("exchange RANK RANKS HOST:PORT NUMBERS [f32|bf16|f16 [TIMES]]".into());
    };
    let (rank, ranks, numbers): (usize, usize, usize) = (rank.parse()?, ranks.parse()?, numbers.parse()?);
    let (wire, width) = match more.first().map(String::as_str) {
        None | Some("f32") => (Wire::F32, 4),
        Some("bf16") => (Wire::Bf16, 2),
        Some("f16") => (Wire::F16, 2),
        Some(other) => return Err(format!("no number on the wire is called {other}").into()),
    };
    let times = more.get(1).map_or(Ok(5), |text| text.parse())?;
    #[cfg(feature = "mpi")]
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        measure(&bellows_mpi::Mpi::begin(PATIENCE)?, numbers, wire, width, times)?;
        bellows_mpi::Mpi::end();
        return Ok(());
    }
    let until = Instant::now() + PATIENCE;
    let late = || (Instant::now() >= until).then(|| "not all ranks came in time".to_string());
    let others = match rank {
        0 => Tcp::host(&TcpListener::bind(address)?, ranks, &late)?,
        _ => Tcp::join(address, rank, ranks, PATIENCE, &|_| {})?,
    };
    measure(&others, numbers, wire, width, times)
}

fn measure(others: &dyn Exchange, numbers: usize, wire: Wire, width: usize, times: usize) -> Result<(), Box<dyn Error>> {
    others.wait_at_most(PATIENCE);
    let (rank, ranks) = (others.rank(), others.ranks());
    let mut values = vec![rank as f32; numbers];
    let mut seconds = Vec::new();
    // The first one opens TCP's window.
    for time in 0..=times {
        others.gather(&[])?;
        let begun = Instant::now();
        others.sum(&mut values, wire)?;
        if time > 0 {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    if rank == 0 {
        println!("{ranks},{width},{numbers},{:.6}", seconds[seconds.len() / 2]);
    }
    Ok(())
}
