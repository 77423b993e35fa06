//! What a refused peer is told, of what the server's log says.

use super::frame::Reject;
use crate::contract::Source;

impl Reject {
    /// The answer to a peer from there. A program of the same user is told everything that helps to mend a mistake. A stranger in a
    /// network is not told which services there are: their names are all that it needs to
    /// connect.
    pub fn told_to(self, source: Source) -> Reject {
        match self {
            Reject::Service { .. } if !source.is_of_same_user() => {
                Reject::Service { served: Vec::new() }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_the_same_user_are_told_which_services_there_are() {
        let reject = Reject::Service { served: vec!["Kv".into()] };
        for ours in [Source::Process(1), Source::HiddenProcess] {
            assert_eq!(reject.clone().told_to(ours), reject);
        }
        let machine = Source::Machine([10, 0, 0, 1].into());
        for stranger in [machine, Source::Node(1), Source::Unknown] {
            let told = reject.clone().told_to(stranger);
            assert_eq!(told, Reject::Service { served: Vec::new() });
        }
        let mend = Reject::Backend { theirs: "datagram".into() };
        assert_eq!(mend.clone().told_to(machine), mend);
    }
}
