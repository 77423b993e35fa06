//! What an end can do that ends of earlier versions cannot: behind its setup, which those do not look at.

use serde::de::DeserializeOwned;

use crate::contract::SetupError;

/// What an end can do that ends of earlier versions cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Features {
    /// It reads large messages where they are: see [`Here`](crate::rendezvous::wire::Here).
    pub(crate) reads_here: bool,
}

impl Features {
    /// Of this end.
    pub(crate) const OURS: Features = Features { reads_here: true };

    fn to_byte(self) -> u8 {
        u8::from(self.reads_here)
    }

    fn from_byte(byte: u8) -> Features {
        Features { reads_here: byte & 1 != 0 }
    }

    /// The setup of this end, and what it can do.
    pub(crate) fn append_to(self, mut setup: Vec<u8>) -> Vec<u8> {
        setup.push(self.to_byte());
        setup
    }

    /// A peer's setup, and what it can do.
    ///
    /// # Errors
    /// [`SetupError::Misbehaved`].
    pub(crate) fn split<S: DeserializeOwned>(setup: &[u8]) -> Result<(S, Features), SetupError> {
        let (value, rest) = postcard::take_from_bytes(setup)
            .map_err(|_| SetupError::Misbehaved("its setup cannot be decoded"))?;
        Ok((value, Features::from_byte(rest.first().copied().unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::setup;

    #[test]
    fn ends_of_earlier_and_later_versions_understand_each_other() {
        let earlier = postcard::to_allocvec(&(7_u32, 9_u32)).unwrap();
        assert_eq!(Features::split(&earlier).unwrap(), ((7_u32, 9_u32), Features::default()));
        let ours = Features::OURS.append_to(earlier);
        assert_eq!(Features::split(&ours).unwrap(), ((7_u32, 9_u32), Features::OURS));
        assert_eq!(setup::decode::<(u32, u32)>(&ours).unwrap(), (7, 9), "earlier ones ignore it");
        let later = [&ours[..2], &[0xff, 1, 2]].concat();
        assert_eq!(Features::split(&later).unwrap(), ((7_u32, 9_u32), Features::OURS));
        assert!(Features::split::<(u32, u32)>(&[7]).is_err());
    }
}
