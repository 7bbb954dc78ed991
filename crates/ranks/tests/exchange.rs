//! Every exchange gives every rank what it should have, in the order of the ranks, and says who is gone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bellows_ranks::{Exchange, ExchangeError, Tcp, Wire, threads};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Rank `rank` of a meeting at `listener`, which rank 0 has.
fn meet(listener: &TcpListener, rank: usize, ranks: usize) -> Result<Tcp, ExchangeError> {
    match rank {
        0 => Tcp::host(listener, ranks, &|| None),
        _ => Tcp::join(&listener.local_addr().unwrap().to_string(), rank, ranks, PATIENCE, &|_| {}),
    }
}

/// What `does` gives on each of so many ranks, in threads and over TCP.
fn on_all<T: Send + PartialEq + std::fmt::Debug>(ranks: usize, does: impl Fn(&dyn Exchange) -> T + Sync) -> Vec<T> {
    let (does, listener) = (&does, &TcpListener::bind("127.0.0.1:0").unwrap());
    thread::scope(|scope| {
        let near: Vec<_> = threads(ranks).into_iter().map(|rank| scope.spawn(move || does(&rank))).collect();
        let far: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || does(&meet(listener, rank, ranks).unwrap()))).collect();
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
            let parts: Vec<[u8; 2]> = (0..ranks).map(|to| [ex.rank() as u8, to as u8]).collect();
            let parts: Vec<&[u8]> = parts.iter().map(<[u8; 2]>::as_slice).collect();
            (ex.swap(&parts).unwrap(), ex.gather(&[ex.rank() as u8; 3]).unwrap(), ex.first(&[7 + ex.rank() as u8]).unwrap())
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
            ex.sum(&mut values, Wire::F32).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        let expected: Vec<u32> = (0..len).map(|i| (1..ranks).fold(value(0, i), |sum, rank| sum + value(rank, i)).to_bits()).collect();
        assert!(sums.iter().all(|sum| *sum == expected), "{ranks} ranks, {len} values");
    }
}

/// Each number is rounded on its way to the rank that adds, and the sum on its way back; nothing in between is.
#[test]
fn half_the_bytes_cost_a_rounding_each_way_and_no_rank_has_other_bits() {
    let value = |rank: usize, i: usize| ((37 * rank + i) as f32 * 0.7).sin() * 10.0_f32.powi(i as i32 % 6 - 3);
    for (wire, half_an_ulp) in [(Wire::Bf16, 2.0_f32.powi(-8)), (Wire::F16, 2.0_f32.powi(-11))] {
        for (ranks, len) in [(2, 3), (3, 1000), (4, 1001)] {
            let sums = on_all(ranks, |ex| {
                let mut values: Vec<f32> = (0..len).map(|i| value(ex.rank(), i)).collect();
                ex.sum(&mut values, wire).unwrap();
                values
            });
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{wire:?}: all have the same");
            let mut rounded = 0;
            for (i, sum) in sums[0].iter().enumerate() {
                let exact: f32 = (0..ranks).map(|rank| value(rank, i)).sum();
                let sizes: f32 = (0..ranks).map(|rank| value(rank, i).abs()).sum();
                // Below its normal numbers f16 has steps of 2^-24.
                let most = half_an_ulp * (sizes + exact.abs()) * 1.01
                    + if wire == Wire::F16 { (ranks + 1) as f32 * 2.0_f32.powi(-25) } else { 0.0 };
                assert!((sum - exact).abs() <= most, "{wire:?}: {sum} for {exact}");
                rounded += usize::from((sum - exact).abs() > 0.1 * most);
            }
            assert!(rounded > 0, "{wire:?} has rounded");
        }
    }
    let large = on_all(2, |ex| {
        let mut values = [1e5, 1.0];
        ex.sum(&mut values, Wire::F16).unwrap();
        values
    });
    assert_eq!(large, [[f32::INFINITY, 2.0]; 2], "what f16 does not hold is seen");
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
    let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
    let (given_up, hears) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let silent = scope.spawn(move || {
            let rank = meet(listener, 1, 2).unwrap();
            hears.recv_timeout(Duration::from_secs(60)).unwrap_err();
            rank.gather(b"late").is_err()
        });
        let rank = meet(listener, 0, 2).unwrap();
        rank.wait_at_most(Duration::from_secs(1));
        let error = rank.gather(b"here").unwrap_err();
        assert_eq!(error.to_string(), "rank 1 is gone: it said nothing for too long");
        drop((rank, given_up));
        assert!(silent.join().unwrap());
    });
}

/// What two ranks gather, of which the second comes when it has done what makes it `busy`; the first calls `heard` when it hears of it.
fn gathered_late(busy: impl FnOnce(&Tcp) + Send, patience: Duration, heard: fn()) -> Vec<Vec<u8>> {
    let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(move || {
            let rank = meet(listener, 1, 2).unwrap();
            rank.wait_at_most(patience);
            busy(&rank);
            rank.gather(b"late").unwrap()
        });
        let rank = meet(listener, 0, 2).unwrap().hearing(heard);
        rank.wait_at_most(patience);
        let all = rank.gather(b"here").unwrap();
        assert_eq!(late.join().unwrap(), all);
        all
    })
}

#[test]
fn who_works_for_long_and_says_so_is_waited_for() {
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    let busy = |rank: &Tcp| {
        for _ in 0..180 {
            thread::sleep(Duration::from_millis(50));
            rank.sign_of_life();
        }
    };
    let heard = || {
        HEARD.fetch_add(1, Ordering::SeqCst);
    };
    let all = gathered_late(busy, Duration::from_secs(8), heard);
    assert_eq!(all, [b"here", b"late"]);
    assert!(HEARD.load(Ordering::SeqCst) > 1, "whoever waits knows of it");
}

#[test]
fn signs_of_life_that_nobody_needs_do_not_travel() {
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    let heard = || {
        HEARD.fetch_add(1, Ordering::SeqCst);
    };
    let all = gathered_late(|rank| (0..10_000).for_each(|_| rank.sign_of_life()), Duration::from_secs(36_000), heard);
    assert_eq!(all, [b"here", b"late"]);
    assert_eq!(HEARD.load(Ordering::SeqCst), 2, "one beside the beginning of the exchange");
}

/// Its supervisor's clock began with the work before, and is to run no longer than the exchange's own.
#[test]
fn an_exchange_that_begins_is_a_sign_of_life() {
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    let heard = || {
        HEARD.fetch_add(1, Ordering::SeqCst);
    };
    let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let dies = scope.spawn(|| drop(meet(listener, 1, 2).unwrap()));
        let rank = meet(listener, 0, 2).unwrap().hearing(heard);
        dies.join().unwrap();
        let before = HEARD.load(Ordering::SeqCst);
        assert!(matches!(rank.gather(b"here"), Err(ExchangeError::Gone { rank: 1, .. })));
        assert_eq!((before, HEARD.load(Ordering::SeqCst)), (0, 1));
    });
}

#[test]
fn a_meeting_that_does_not_come_about_says_why() {
    let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
    let alone = Tcp::host(listener, 2, &|| Some("rank 1 has ended".into())).err().unwrap().to_string();
    assert!(alone.ends_with("rank 1 has ended"), "{alone}");
    // No port that the system hands out by itself: another test's listener might have it by then.
    let nowhere = "127.0.0.1:1";
    let told = RefCell::new(Vec::new());
    let tell = |why: &str| told.borrow_mut().push(why.to_string());
    let nobody = Tcp::join(nowhere, 1, 2, Duration::from_secs(4), &tell).err().unwrap().to_string();
    assert!(nobody.starts_with(&format!("rank 1 cannot meet the others at {nowhere}: ")), "{nobody}");
    let told = told.into_inner();
    assert!(matches!(&told[..], [why] if why.starts_with(&format!("no rank at {nowhere} yet"))), "once, in the meantime: {told:?}");
    thread::scope(|scope| {
        let address = listener.local_addr().unwrap().to_string();
        scope.spawn(move || Tcp::join(&address, 1, 3, Duration::from_secs(1), &|_| {}).err().unwrap());
        let other = meet(listener, 0, 2).err().unwrap().to_string();
        assert!(other.ends_with("rank 1 of 3 comes to a meeting of 2"), "{other}");
    });
    // Rank 0 is there, and rank 2 is not: for ever, or until rank 0 has enough of it.
    for (patient, seconds, ending) in [(true, 2, "not all ranks came in time"), (false, 20, "before all had come: it says why")] {
        let address = listener.local_addr().unwrap().to_string();
        let (told, has_left) = (&Mutex::new(Vec::new()), &AtomicBool::new(false));
        let tell = |why: &str| told.lock().unwrap().push(why.to_string());
        let has_enough = move || has_left.load(Ordering::SeqCst) || !patient && !told.lock().unwrap().is_empty();
        let late = move || has_enough().then(|| "enough".to_string());
        let why = thread::scope(|scope| {
            let host = scope.spawn(move || Tcp::host(listener, 3, &late).err().unwrap().to_string());
            let why = Tcp::join(&address, 1, 3, Duration::from_secs(seconds), &tell).err().unwrap().to_string();
            has_left.store(true, Ordering::SeqCst);
            assert!(host.join().unwrap().ends_with("enough"));
            why
        });
        assert!(why.ends_with(ending), "{why}");
        assert_eq!(*told.lock().unwrap(), ["rank 0 is there, and waits for other ranks"]);
    }
}

#[test]
fn who_is_no_rank_is_sent_away() {
    let listener = &TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let host = scope.spawn(move || meet(listener, 0, 2).unwrap().gather(b"0").unwrap());
        let mut stranger = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let rank = meet(listener, 1, 2).unwrap();
        assert_eq!(rank.gather(b"1").unwrap(), host.join().unwrap());
    });
}

#[test]
fn another_number_of_values_is_noticed() {
    let errors = on_all(2, |ex| matches!(ex.sum(&mut vec![1.0; 4 + 4 * ex.rank()], Wire::F32), Err(ExchangeError::Unlike { .. })));
    assert_eq!(errors, [true; 2]);
}

/// It has said its word, so nobody waits for that; but what it is told is more than a connection holds.
#[test]
fn a_rank_that_reads_nothing_is_taken_for_dead() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut deaf = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut say = |word: &[u8]| deaf.write_all(&[&(word.len() as u64).to_le_bytes()[..], word].concat()).unwrap();
    ["bellows rank 1 of 2", "4711", ""].into_iter().for_each(|word| say(word.as_bytes()));
    let rank = Tcp::host(&listener, 2, &|| None).unwrap();
    rank.wait_at_most(Duration::from_millis(300));
    let begun = Instant::now();
    let error = rank.swap(&[&[], &vec![0; 64 << 20]]).unwrap_err();
    assert!(matches!(error, ExchangeError::Silent { rank: 1, .. }) && begun.elapsed() < PATIENCE, "{error}");
    // Whoever tries again is told the same, and not that a connection was closed.
    let again = rank.swap(&[&[], b"x"]).unwrap_err();
    assert!(matches!(again, ExchangeError::Silent { rank: 1, .. }), "{again}");
    // It was there all the time.
    assert!(deaf.read(&mut [0; 8]).is_ok_and(|read| read == 8));
}
