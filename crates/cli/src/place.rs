//! Which rank of a run this process is, where another process has said so: in the last words of its command line, or in the environment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::words::{RANK, last_words};

/// Whether another process speaks for this one.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Where the ranks of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Rank 0 waits there.
    At(String),
    /// MPI has brought them together.
    #[cfg(feature = "mpi")]
    Mpi,
}

/// Which rank a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Which it is on its machine, and how many there are.
    pub(crate) local: (usize, usize),
    pub(crate) meeting: Meeting,
    pub(crate) by: Starter,
}

/// Who has started a process as a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starter {
    /// Rank 0.
    First,
    /// A person or a script.
    Person,
    /// `mpirun` or `srun`, which take the end of the process they have started for that of the rank.
    Launcher,
}

impl Place {
    /// That of a process whose last word is `1/4/2@127.0.0.1:4711`: rank 1 of 4, which was the third before another was lost.
    fn of_word(word: &str) -> Option<Self> {
        let (numbers, address) = word.split_once('@')?;
        let numbers: Option<Vec<usize>> = numbers.split('/').map(|number| number.parse().ok()).collect();
        let [rank, ranks, number] = numbers?.try_into().ok()?;
        Some(Self { rank, ranks, local: (number, ranks), meeting: Meeting::At(address.into()), by: Starter::First })
    }

    /// That of a process whom the environment says so; `None` where it names no other rank.
    fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let number = |name: &str| number(&variable, name);
        let needed = |name: &str| {
            format!("WORLD_SIZE is in the environment and {name} is not: every rank needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
        };
        let Some(ranks) = number("WORLD_SIZE")?.filter(|&ranks| ranks > 1) else { return Ok(None) };
        let rank = number("RANK")?.ok_or_else(|| needed("RANK"))?;
        if rank >= ranks {
            return Err(format!("RANK is {rank} of WORLD_SIZE {ranks} in the environment: they count from 0"));
        }
        let host = variable("MASTER_ADDR").ok_or_else(|| needed("MASTER_ADDR"))?;
        let port = port(&variable)?.ok_or_else(|| needed("MASTER_PORT"))?;
        let local = (number("LOCAL_RANK")?.unwrap_or(0), number("LOCAL_WORLD_SIZE")?.unwrap_or(1).max(1));
        Ok(Some(Self { rank, ranks, local, meeting: Meeting::At(format!("{host}:{port}")), by: Starter::Person }))
    }
}

impl Place {
    /// That of a process that Open MPI's `mpirun` has started beside others; `None` where it has not.
    fn of_mpirun(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let of = |name: &str| number(&variable, &format!("OMPI_COMM_WORLD_{name}"));
        let (Some(ranks), Some(rank)) = (of("SIZE")?.filter(|&ranks| ranks > 1), of("RANK")?) else { return Ok(None) };
        let local = (of("LOCAL_RANK")?.unwrap_or(0), of("LOCAL_SIZE")?.unwrap_or(1).max(1));
        Ok(Some(Self { rank, ranks, local, meeting: meeting(&variable, local.1 == ranks)?, by: Starter::Launcher }))
    }
}

impl Place {
    /// That of a task that Slurm's `srun` has started beside others of its step; `None` where it has not, and where somebody else within the step has
    /// said more: `mpirun`, or `WORLD_SIZE=1`.
    fn of_srun(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        if ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"].iter().any(|name| variable(name).is_some()) {
            return Ok(None);
        }
        // The script of a job has variables of tasks, too, and no step.
        let Some(step) = variable("SLURM_STEP_ID") else { return Ok(None) };
        let of = |name: &str| number(&variable, &format!("SLURM_{name}"));
        let (Some(ranks), Some(rank)) = (of("STEP_NUM_TASKS")?.filter(|&ranks| ranks > 1), of("PROCID")?) else { return Ok(None) };
        let (node, local) = (of("NODEID")?.unwrap_or(0), of("LOCALID")?.unwrap_or(0));
        let listed = variable("SLURM_STEP_TASKS_PER_NODE").and_then(|list| tasks_on(&list, node));
        let here = listed.or(of("NTASKS_PER_NODE")?).unwrap_or(1).max(local + 1);
        let first = || if here == ranks { Some("127.0.0.1".to_string()) } else { first_host(&variable("SLURM_STEP_NODELIST")?) };
        let host = variable("MASTER_ADDR").or_else(first).ok_or(
            "srun has started ranks on several machines and SLURM_STEP_NODELIST names none: set MASTER_ADDR to the one that has rank 0",
        )?;
        let job = variable("SLURM_JOB_ID").unwrap_or_default();
        let port = port(&variable)?.unwrap_or_else(|| port_of(&format!("{job}.{step}")));
        Ok(Some(Self { rank, ranks, local: (local, here), meeting: Meeting::At(format!("{host}:{port}")), by: Starter::Launcher }))
    }
}

/// Whether a process that nobody else's variables name is one of several that another MPI's launcher has started: those of MPICH and of Intel set
/// `PMI_SIZE`, as a step of Slurm may, and each of them would be a run of its own.
fn of_no_other(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let said = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID"].iter().any(|name| variable(name).is_some());
    match number(&variable, "PMI_SIZE")? {
        Some(2..) if !said => {
            Err("this mpirun is not Open MPI's, and each of its ranks would be a run of its own: use that of Debian's openmpi-bin, or \
                                   set WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT"
                .into())
        }
        _ => Ok(()),
    }
}

/// The tasks on this node of a step, as Slurm lists them: `2(x3),1` are two on each of three nodes and one on the fourth.
fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut nodes = 0;
    for group in list.split(',') {
        let (tasks, times) = group.split_once("(x").unwrap_or((group, "1"));
        nodes += times.trim_end_matches(')').parse::<usize>().ok()?;
        if node < nodes {
            return tasks.trim().parse().ok();
        }
    }
    None
}

/// The first machine of such a list as Slurm has: `gpu[03-05,9],login` begins with `gpu03`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim().chars();
    while let Some(letter) = rest.next() {
        match letter {
            ',' => break,
            '[' => {
                let numbers: String = rest.by_ref().take_while(|&letter| letter != ']').collect();
                host.push_str(numbers.split(['-', ',']).next().unwrap_or_default());
            }
            _ => host.push(letter),
        }
    }
    Some(host).filter(|host| !host.is_empty())
}

/// The port of a job whose ranks were not told one: between those that servers have and those that a system picks.
fn port_of(job: &str) -> usize {
    20_000 + crc32c::crc32c(job.as_bytes()) as usize % 10_000
}

/// Where ranks meet that `mpirun` has started: by MPI.
#[cfg(feature = "mpi")]
fn meeting(_: &impl Fn(&str) -> Option<String>, _: bool) -> Result<Meeting, String> {
    Ok(Meeting::Mpi)
}

/// Where ranks meet that `mpirun` has started, in a program without MPI: on this machine, at a port that is the job's, if all are `here`; else
/// where the environment says.
#[cfg(not(feature = "mpi"))]
fn meeting(variable: &impl Fn(&str) -> Option<String>, here: bool) -> Result<Meeting, String> {
    let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].iter().find_map(|name| variable(name));
    match (variable("MASTER_ADDR"), port(variable)?, job) {
        (Some(host), Some(port), _) => Ok(Meeting::At(format!("{host}:{port}"))),
        (_, _, Some(job)) if here => Ok(Meeting::At(format!("127.0.0.1:{}", port_of(&job)))),
        _ => Err("mpirun has started ranks on several machines, and this program is built without the feature mpi (Debian's libopenmpi-dev and \
                  libclang-dev): build it with that, or let the ranks meet over TCP with -x MASTER_ADDR=HOST -x MASTER_PORT=29500, where HOST has rank 0"
            .into()),
    }
}

fn number(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>, String> {
    let read = |text: String| text.trim().parse::<usize>().map_err(|_| format!("{name} in the environment is {text:?}, and no number"));
    variable(name).map(read).transpose()
}

/// Where rank 0 waits on its machine.
fn port(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<usize>, String> {
    match number(variable, "MASTER_PORT")? {
        Some(port) if !(1..=65_535).contains(&port) => Err(format!("MASTER_PORT is {port} in the environment: ports are 1 to 65535")),
        port => Ok(port),
    }
}

/// Which rank this process is, if somebody else has said so: before it has started others itself.
pub(crate) fn told() -> Result<Option<Place>, String> {
    static TOLD: OnceLock<Option<Place>> = OnceLock::new();
    if let Some(place) = TOLD.get() {
        return Ok(place.clone());
    }
    let place = match last_words(RANK) {
        Some(word) => Place::of_word(&word.to_string_lossy()),
        None => {
            let variable = |name: &str| std::env::var(name).ok();
            let mut place = Place::of_environment(variable)?;
            if place.is_none() {
                place = Place::of_mpirun(variable)?;
            }
            if place.is_none() {
                place = Place::of_srun(variable)?;
            }
            if place.is_none() {
                of_no_other(variable)?;
            }
            place
        }
    };
    Ok(TOLD.get_or_init(|| place).clone())
}

/// Which rank this process is: 0, if it is the only one or has started the others.
pub(crate) fn rank() -> usize {
    told().ok().flatten().map_or(0, |place| place.rank)
}

/// From here on this process takes part in what its ranks do together, of which rank 0 speaks. What stands in the environment of a verb that has no
/// ranks silences nobody.
pub(crate) fn take_part() {
    SILENT.store(rank() > 0, Ordering::Relaxed);
}

/// Whether rank 0 speaks for this process.
pub(crate) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Whether rank 0 has started this process.
pub(crate) fn is_started() -> bool {
    told().ok().flatten().is_some_and(|place| place.by == Starter::First)
}

/// Whether somebody else has started this process beside others.
pub(crate) fn is_placed() -> bool {
    told().ok().flatten().is_some_and(|place| place.by != Starter::First)
}

/// Whether that was a launcher.
pub(crate) fn is_launched() -> bool {
    told().ok().flatten().is_some_and(|place| place.by == Starter::Launcher)
}

/// Whether that was MPI's, which ends all when one ends.
pub(crate) fn is_of_mpi() -> bool {
    told().ok().flatten().is_some_and(|place| !matches!(place.meeting, Meeting::At(_)))
}

/// What stands before all that this process has to say, where it is not the one that speaks for all.
pub(crate) fn prefix() -> String {
    match rank() {
        0 => String::new(),
        rank => format!("rank {rank}: "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_which_rank_it_is() {
        let started = Place { rank: 1, ranks: 4, local: (2, 4), meeting: Meeting::At("127.0.0.1:4711".into()), by: Starter::First };
        assert_eq!(Place::of_word("1/4/2@127.0.0.1:4711"), Some(started));
        assert_eq!(["1/4/1", "1/4@a:1", "x/4/1@a:1", ""].map(Place::of_word), [None, None, None, None]);
        let of = |pairs: &'static [(&str, &str)]| {
            Place::of_environment(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(of(&[("RANK", "3")]), Ok(None));
        assert_eq!(of(&[("WORLD_SIZE", "1"), ("RANK", "0")]), Ok(None), "alone");
        let all = of(&[
            ("WORLD_SIZE", "4"),
            ("RANK", "3"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "29500"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
        ]);
        assert_eq!(all, Ok(Some(Place { rank: 3, ranks: 4, local: (1, 2), meeting: Meeting::At("a:29500".into()), by: Starter::Person })));
        assert!(of(&[("WORLD_SIZE", "4"), ("RANK", "4")]).unwrap_err().contains("count from 0"));
        assert!(of(&[("WORLD_SIZE", "4"), ("RANK", "0")]).unwrap_err().contains("MASTER_ADDR is not"));
        assert!(of(&[("WORLD_SIZE", "many")]).unwrap_err().contains("no number"));
        for port in ["295000", "0"] {
            let pairs = [("WORLD_SIZE", "4"), ("RANK", "3"), ("MASTER_ADDR", "a"), ("MASTER_PORT", port)];
            let place = Place::of_environment(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()));
            assert!(place.unwrap_err().contains("ports are 1 to 65535"), "{port}");
        }
    }

    /// Variables as Open MPI 4.1 sets them.
    #[test]
    fn a_rank_that_mpirun_has_started_knows_it() {
        const LOCAL: [(&str, &str); 5] = [
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "1717633025"),
        ];
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Place::of_mpirun(move |name| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()))
        };
        let place = of(&LOCAL).unwrap().unwrap();
        assert_eq!((place.rank, place.ranks, place.local), (3, 4, (1, 4)));
        assert_eq!(of(&LOCAL[2..]), Ok(None));
        if cfg!(not(feature = "mpi")) {
            assert_eq!(place.meeting, of(&LOCAL).unwrap().unwrap().meeting, "all ranks of a job find the same place");
            let far = [&LOCAL[..3], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
            assert!(of(&far).unwrap_err().contains("libopenmpi-dev"));
            let told = of(&[&far[..], &[("MASTER_ADDR", "one"), ("MASTER_PORT", "29500")]].concat()).unwrap().unwrap();
            assert_eq!(format!("{:?}", told.meeting), "At(\"one:29500\")");
        }
    }

    /// Variables as Slurm's manual has them in a step, here five tasks on three machines.
    #[test]
    fn a_rank_that_srun_has_started_knows_it() {
        const STEP: [(&str, &str); 8] = [
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "5"),
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_STEP_NODELIST", "gpu[03-04,9]"),
        ];
        let of = |pairs: &[(&str, &str)]| {
            // The last one counts.
            let pairs: Vec<(String, String)> = pairs.iter().rev().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Place::of_srun(move |name| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()))
        };
        let with = |more: &[(&str, &str)]| of(&[&STEP[..], more].concat());
        let at = |place: Option<Place>| format!("{:?}", place.unwrap().meeting);
        let place = with(&[]).unwrap().unwrap();
        assert_eq!((place.rank, place.ranks, place.local, place.by), (3, 5, (1, 2), Starter::Launcher));
        let first = at(Some(place));
        assert!(first.starts_with("At(\"gpu03:2"), "{first}");
        assert_eq!(
            at(with(&[("SLURM_PROCID", "4"), ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "2")]).unwrap()),
            first,
            "all find the same place"
        );
        assert_ne!(at(with(&[("SLURM_STEP_ID", "1")]).unwrap()), first, "and two steps of a job two");
        assert_eq!(at(with(&[("MASTER_ADDR", "one"), ("MASTER_PORT", "29500")]).unwrap()), "At(\"one:29500\")");
        let here = with(&[("SLURM_STEP_TASKS_PER_NODE", "5"), ("SLURM_NODEID", "0")]).unwrap().unwrap();
        assert_eq!(here.local, (1, 5));
        assert!(at(Some(here)).starts_with("At(\"127.0.0.1:2"));
        // Older ones say less of a step.
        assert_eq!(of(&[&STEP[..6], &[("MASTER_ADDR", "one"), ("SLURM_NTASKS_PER_NODE", "2")]].concat()).unwrap().unwrap().local, (1, 2));
        assert!(of(&STEP[..7]).unwrap_err().contains("MASTER_ADDR"));
        assert!(with(&[("SLURM_PROCID", "x")]).unwrap_err().contains("SLURM_PROCID"));
        assert_eq!(of(&[&STEP[..1], &STEP[2..]].concat()), Ok(None), "a job's script");
        for alone in [("SLURM_STEP_NUM_TASKS", "1"), ("WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_SIZE", "4")] {
            assert_eq!(with(&[alone]), Ok(None), "{alone:?}");
        }
    }

    #[test]
    fn ranks_of_another_mpirun_are_refused() {
        let of = |pairs: &'static [(&'static str, &'static str)]| {
            of_no_other(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        assert!(of(&[("PMI_SIZE", "4"), ("PMI_RANK", "1")]).unwrap_err().contains("openmpi-bin"));
        let well: [&[(&str, &str)]; 4] =
            [&[], &[("PMI_SIZE", "1")], &[("PMI_SIZE", "4"), ("WORLD_SIZE", "1")], &[("PMI_SIZE", "4"), ("SLURM_STEP_ID", "0")]];
        for pairs in well {
            assert_eq!(of(pairs), Ok(()), "{pairs:?}");
        }
    }

    #[test]
    fn lists_of_slurm_are_read() {
        assert_eq!([0, 2, 3, 4].map(|node| tasks_on("2(x3),1", node)), [Some(2), Some(2), Some(1), None]);
        assert_eq!((tasks_on("4", 0), tasks_on("many", 0), tasks_on("2(xx)", 0)), (Some(4), None, None));
        let lists = ["one", "one,two", "gpu[03-05,9],login", "rack[1-2]node[7,9]x", ""].map(first_host);
        assert_eq!(lists.each_ref().map(|host| host.as_deref()), [Some("one"), Some("one"), Some("gpu03"), Some("rack1node7x"), None]);
    }
}
