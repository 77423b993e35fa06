//! What looks at the same load have in common, and how far they are apart: on a machine whose cores are shared, one look is held up, and the
//! next is not.

use super::choice::Measured;

/// The part of the latest look in the running mean.
const FRESH_IN_MEAN: f64 = 0.25;

/// The part of the latest look in the spread.
const FRESH: f64 = 0.1;

/// What one look counts at most: e times as long, twice over.
const MOST: f64 = 2.0;

/// What differs by less than so many spreads is not another load.
const WIDENS: f64 = 3.0;

/// Looks have noise from such a spread on.
const IS_NOISY: f64 = 0.25;

/// By how much the quick looks follow the latest; and how much more where that is quicker: they are those of one in four.
const STEP: f64 = 0.05;
const STEP_DOWN: f64 = 3.0 * STEP;

/// Trials in a row that must show a gain where looks have noise.
const TRIALS: u32 = 2;

/// How long calls have taken lately, each of them counted alike. A look in which the thread had no core has few, and so counts little.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunningMean {
    answers: f64,
    under_way_ns: f64,
}

impl RunningMean {
    pub(super) fn note(&mut self, measured: Measured) {
        if measured.answers == 0 {
            return;
        }
        let fresh = if self.answers > 0.0 { FRESH_IN_MEAN } else { 1.0 };
        self.answers += fresh * (measured.answers as f64 - self.answers);
        self.under_way_ns += fresh * (measured.under_way_ns as f64 - self.under_way_ns);
    }

    pub(super) fn per_call_ns(self) -> Option<f64> {
        (self.answers > 0.0).then(|| self.under_way_ns / self.answers)
    }

    /// What a look says, up to 1: little if it has far fewer answers than most.
    pub(super) fn weight(self, look: Measured) -> f64 {
        if self.answers > 0.0 { (look.answers as f64 / self.answers).min(1.0) } else { 1.0 }
    }
}

/// The looks at calls on one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    /// Around their running mean: the mean distance of the logarithms.
    pub(super) spread: f64,
    /// What calls take in the quickest quarter of the looks.
    pub(super) quick_ns: f64,
}

impl Noise {
    /// Calls took so long in a look, and in the mean. The look has that weight.
    pub(super) fn note(&mut self, latest_ns: f64, mean_ns: f64, weight: f64) {
        let distance = (latest_ns / mean_ns).ln().abs().min(MOST);
        self.spread += FRESH * (distance - self.spread);
        let is_quicker = latest_ns < self.quick_ns;
        self.quick_ns *= (weight * if is_quicker { -STEP_DOWN } else { STEP }).exp();
    }

    /// Calls take so long from now on.
    pub(super) fn restart(&mut self, mean_ns: f64) {
        self.quick_ns = mean_ns;
    }

    fn is_there(self) -> bool {
        self.spread >= IS_NOISY
    }

    /// Trials in a row that must show a gain.
    pub(super) fn trials(self) -> u32 {
        if self.is_there() { TRIALS } else { 1 }
    }

    /// What calls on another way must take less than. A short trial may be over before the thread loses its core, so with noise it is
    /// compared with looks of which that is true as well.
    pub(super) fn to_beat(self, mean_ns: f64) -> f64 {
        if self.is_there() { self.quick_ns.min(mean_ns) } else { mean_ns }
    }

    /// How many times longer or shorter calls must take to be of another load, if it were this many without noise.
    pub(super) fn widen(self, factor: f64) -> f64 {
        factor * (WIDENS * self.spread).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(mean_ns: f64, looks: [f64; 4]) -> Noise {
        let mut noise = Noise::default();
        noise.restart(mean_ns);
        (0..400).for_each(|look| noise.note(looks[look % 4], mean_ns, 1.0));
        noise
    }

    #[test]
    fn what_hardly_differs_is_compared_with_the_mean() {
        let noise = noted(1000.0, [900.0, 1100.0, 1000.0, 1000.0]);
        assert_eq!((noise.trials(), noise.to_beat(1000.0)), (1, 1000.0));
        assert!(noise.widen(1.6) < 2.0);
    }

    #[test]
    fn with_noise_the_quick_looks_are_to_be_beaten() {
        let noise = noted(3000.0, [900.0, 1000.0, 3000.0, 9000.0]);
        assert_eq!(noise.trials(), 2);
        assert!((700.0..1200.0).contains(&noise.to_beat(3000.0)), "{noise:?}");
        assert!(noise.widen(1.6) > 9.0, "{noise:?}");
    }
}
