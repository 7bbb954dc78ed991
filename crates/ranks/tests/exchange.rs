//! Every exchange gives every rank what it should have, in the order of the ranks, and says who is gone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use bellows_ranks::{Exchange, ExchangeError, Meeting, Tcp, threads};

fn free_port() -> String {
    format!("127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

fn meeting(ranks: usize, seconds: u64) -> Meeting {
    Meeting { address: free_port(), ranks, patience: Duration::from_secs(seconds) }
}

/// What `does` gives on each of so many ranks, in threads and over TCP.
fn on_all<T: Send + PartialEq + std::fmt::Debug>(ranks: usize, does: impl Fn(&dyn Exchange) -> T + Sync) -> Vec<T> {
    let (does, meeting) = (&does, &meeting(ranks, 20));
    thread::scope(|scope| {
        let near: Vec<_> = threads(ranks).into_iter().map(|rank| scope.spawn(move || does(&rank))).collect();
        let far: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || does(&Tcp::meet(meeting, rank).unwrap()))).collect();
        let [near, far] = [near, far].map(|all| all.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>());
        assert_eq!(near, far);
        near
    })
}

#[test]
fn every_rank_gets_what_each_gives_it() {
    for ranks in [1, 2, 5] {
        let all = on_all(ranks, |ex| {
            assert_eq!(ex.ranks(), ranks);
            let parts = (0..ranks).map(|to| vec![ex.rank() as u8, to as u8]).collect();
            (ex.swap(parts).unwrap(), ex.gather(&[ex.rank() as u8; 3]).unwrap(), ex.first(&[7 + ex.rank() as u8]).unwrap())
        });
        for (rank, (swapped, gathered, first)) in all.into_iter().enumerate() {
            assert_eq!(swapped, (0..ranks).map(|from| vec![from as u8, rank as u8]).collect::<Vec<_>>());
            assert_eq!((gathered, first), ((0..ranks).map(|from| vec![from as u8; 3]).collect(), vec![7]));
        }
    }
}

#[test]
fn sums_are_made_in_the_order_of_the_ranks() {
    // In another order these give other bits.
    let value = |rank: usize, i: usize| [1e8_f32, 1.0, -1e8, 0.3, -0.7][(rank + i) % 5] * (1.0 + i as f32);
    for (ranks, len) in [(1, 4), (2, 0), (3, 1), (3, 10), (4, 100_000)] {
        let sums = on_all(ranks, |ex| {
            let mut values: Vec<f32> = (0..len).map(|i| value(ex.rank(), i)).collect();
            ex.sum(&mut values).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        let expected: Vec<u32> = (0..len).map(|i| (1..ranks).fold(value(0, i), |sum, rank| sum + value(rank, i)).to_bits()).collect();
        assert!(sums.iter().all(|sum| *sum == expected), "{ranks} ranks, {len} values");
    }
}

#[test]
fn large_parts_do_not_wait_for_each_other() {
    on_all(3, |ex| {
        let mine = vec![ex.rank() as u8; 20 << 20];
        ex.gather(&mine).unwrap().iter().map(|part| (part.len(), part[17])).collect::<Vec<_>>()
    });
}

#[test]
fn who_is_gone_is_named_at_once() {
    let errors = on_all(3, |ex| {
        if ex.rank() == 1 {
            return true;
        }
        let asked = Instant::now();
        let error = ex.gather(b"here").and_then(|_| ex.gather(b"again")).unwrap_err();
        assert!(asked.elapsed() < Duration::from_secs(10), "it waited");
        matches!(error, ExchangeError::Gone { .. })
    });
    assert_eq!(errors, [true; 3]);
}

#[test]
fn who_is_silent_is_not_waited_for() {
    let meeting = &meeting(2, 1);
    thread::scope(|scope| {
        let silent = scope.spawn(move || {
            let rank = Tcp::meet(meeting, 1).unwrap();
            thread::sleep(Duration::from_secs(3));
            rank.gather(b"late").is_err()
        });
        let rank = Tcp::meet(meeting, 0).unwrap();
        assert!(matches!(rank.gather(b"here"), Err(ExchangeError::Gone { rank: 1, .. })));
        drop(rank);
        assert!(silent.join().unwrap());
    });
}

#[test]
fn a_meeting_that_does_not_come_about_says_why() {
    let alone = Tcp::meet(&meeting(2, 1), 0).err().unwrap().to_string();
    assert!(alone.contains("not all ranks came in time"), "{alone}");
    let nobody = Tcp::meet(&meeting(2, 1), 1).err().unwrap().to_string();
    assert!(nobody.contains("rank 1 cannot meet the others at 127.0.0.1:"), "{nobody}");
}

#[test]
fn another_number_of_values_is_noticed() {
    let errors = on_all(2, |ex| matches!(ex.sum(&mut vec![1.0; 4 + 4 * ex.rank()]), Err(ExchangeError::Unlike { .. })));
    assert_eq!(errors, [true; 2]);
}
