//! What a server can be told to leave out, to measure what it is worth: `without=priorities,warm_up`.
//!
//! Only with the cargo feature `ablation`. Without it nothing can be left out, and the checks are constants.

use crate::contract::Config;
#[cfg(feature = "ablation")]
use crate::contract::OptionSpec;

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Without {
    priorities: bool,
    warm_up: bool,
}

impl Without {
    /// What the address says.
    #[cfg(feature = "ablation")]
    pub(super) fn of(config: &Config) -> Without {
        config.options.value_or(&WITHOUT, Without::parse, Without::default())
    }

    /// Nothing.
    #[cfg(not(feature = "ablation"))]
    pub(super) fn of(_: &Config) -> Without {
        Without::default()
    }

    /// All clients have the same priority: groups stay as clients joined them, and all slices are usual ones.
    pub(super) const fn priorities(self) -> bool {
        cfg!(feature = "ablation") && self.priorities
    }

    /// The requests of a group are only read when its slice has begun.
    pub(super) const fn warm_up(self) -> bool {
        cfg!(feature = "ablation") && self.warm_up
    }

    #[cfg(feature = "ablation")]
    fn parse(names: &str) -> Option<Without> {
        names.split(',').try_fold(Without::default(), |without, name| match name {
            "priorities" => Some(Without { priorities: true, ..without }),
            "warm_up" => Some(Without { warm_up: true, ..without }),
            _ => None,
        })
    }
}

#[cfg(feature = "ablation")]
pub(super) const WITHOUT: OptionSpec = OptionSpec {
    name: "without",
    expected: || "some of priorities, warm_up, with commas between them".to_owned(),
    accepts: |value| Without::parse(value).is_some(),
};

#[cfg(all(test, feature = "ablation"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_named() {
        let left = |names| Without::parse(names).map(|it| (it.priorities(), it.warm_up()));
        assert_eq!(left("priorities"), Some((true, false)));
        assert_eq!(left("warm_up"), Some((false, true)));
        assert_eq!(left("warm_up,priorities"), Some((true, true)));
        for wrong in ["", "warm_up,", "speed"] {
            assert_eq!(left(wrong), None, "{wrong}");
        }
    }
}
