//! What a run is busy with, and how long each may take before somebody who watches it gives it up.

use std::collections::{BTreeMap, VecDeque};

/// A step may take so many times the median of the last ones, if that is more than its limit.
const TIMES_THE_MEDIAN: f64 = 10.0;

/// So many of the last steps.
const STEPS: usize = 31;

/// The longest limit in seconds, some thirty years: whoever asks for more means "never", and clocks cannot count as far as numbers go.
const NEVER: f64 = 1e9;

/// What a process that trains is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What comes before training: the device's probe, data, the model.
    Start,
    /// The first step of a session, in which a GPU compiles and tunes its kernels.
    First,
    /// A step.
    Step,
    /// A batch of an evaluation.
    Evaluation,
    /// A checkpoint.
    Save,
    /// Weights and other files, and what is done after training.
    Export,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Start, Self::First, Self::Step, Self::Evaluation, Self::Save, Self::Export];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::First => "first",
            Self::Step => "step",
            Self::Evaluation => "evaluation",
            Self::Save => "save",
            Self::Export => "export",
        }
    }

    /// Seconds it may take without a sign of life. A download says nothing for long, and a new shape is tuned within a step.
    fn usual_s(self) -> f64 {
        match self {
            Self::Start | Self::Export => 3600.0,
            Self::First | Self::Evaluation => 600.0,
            Self::Step | Self::Save => 300.0,
        }
    }
}

/// Seconds without a sign of life after which a process is taken for hung, by phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits([f64; Phase::ALL.len()]);

impl Default for Limits {
    fn default() -> Self {
        Self(Phase::ALL.map(Phase::usual_s))
    }
}

impl Limits {
    /// The usual ones, and those of `settings` where it names a phase.
    ///
    /// # Errors
    /// A name that is no phase's, or a number that is not above 0, as a sentence.
    pub fn of(settings: &BTreeMap<String, f64>) -> Result<Self, String> {
        let mut limits = Self::default();
        for (name, &seconds) in settings {
            let Some(phase) = Phase::ALL.iter().position(|phase| phase.name() == name) else {
                return Err(format!("heartbeat {name}: there are {}", Phase::ALL.map(Phase::name).join(", ")));
            };
            if !(seconds.is_finite() && seconds > 0.0) {
                return Err(format!("heartbeat {name}={seconds} is not above 0"));
            }
            limits.0[phase] = seconds.min(NEVER);
        }
        Ok(limits)
    }

    /// That of a phase.
    pub fn seconds(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
    }
}

/// How long the last steps took: by that a step may take longer than its limit.
#[derive(Clone, Debug, Default)]
pub struct Pace(VecDeque<f64>);

impl Pace {
    /// One more step took so many seconds.
    pub fn add(&mut self, seconds: f64) {
        self.0.push_back(seconds);
        if self.0.len() > STEPS {
            self.0.pop_front();
        }
    }

    /// What a process is busy with that turns to `phase`: the first step of a session is one until it is done, whatever comes between.
    pub fn turn_to(&self, phase: Phase) -> Phase {
        if phase == Phase::Step && self.0.is_empty() { Phase::First } else { phase }
    }

    /// Seconds that a phase may take by these limits, at this pace.
    pub fn seconds(&self, limits: &Limits, phase: Phase) -> f64 {
        let limit = limits.seconds(phase);
        let mut steps: Vec<f64> = self.0.iter().copied().collect();
        steps.sort_by(f64::total_cmp);
        match steps.get(steps.len() / 2) {
            Some(median) if phase == Phase::Step => limit.max(TIMES_THE_MEDIAN * median),
            _ => limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn slow_steps_may_take_ten_times_their_median() {
        let (limits, mut pace) = (Limits::default(), Pace::default());
        assert_eq!(pace.seconds(&limits, Phase::Step), 300.0);
        assert_eq!([Phase::Step, Phase::Save].map(|phase| pace.turn_to(phase)), [Phase::First, Phase::Save]);
        [9.0, 40.0, 41.0].into_iter().for_each(|seconds| pace.add(seconds));
        assert_eq!(Phase::ALL.map(|phase| pace.seconds(&limits, phase)), [3600.0, 600.0, 400.0, 600.0, 300.0, 3600.0]);
        assert_eq!(Phase::ALL.map(|phase| pace.turn_to(phase)), Phase::ALL);
        (0..STEPS).for_each(|_| pace.add(2.0));
        assert_eq!(pace.seconds(&limits, Phase::Step), 300.0);
    }

    #[test]
    fn a_setting_names_a_phase_and_is_above_0() {
        let of = |name: &str, seconds| Limits::of(&[(name.to_string(), seconds)].into());
        let limits = of("save", 7.0).unwrap();
        assert_eq!(Phase::ALL.map(|phase| limits.seconds(phase)), [3600.0, 600.0, 300.0, 600.0, 7.0, 3600.0]);
        assert_eq!(Limits::of(&BTreeMap::new()), Ok(Limits::default()));
        assert!(of("saves", 7.0).unwrap_err().contains("start, first, step, evaluation, save, export"));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(of("step", seconds).is_err());
        }
        let never = of("start", 1e20).unwrap().seconds(Phase::Start);
        assert_eq!(Duration::from_secs_f64(never), Duration::from_secs(1_000_000_000), "as long as a clock counts");
    }
}
