//! The backends of this build: the one list of them.

use crate::contract::Backend;
use crate::datagram::Datagram;
use crate::rfp::Rfp;
use crate::scale::Scale;
use crate::send_recv::SendRecv;
use crate::tcp::Tcp;
use crate::write_imm::WriteImm;

/// Every backend. The first is the default.
pub static ALL: &[&dyn Backend] = &[&WriteImm, &Datagram, &SendRecv, &Tcp, &Rfp, &Scale];

/// The backend that an address without `backend=` means.
pub fn default_backend() -> &'static dyn Backend {
    ALL[0]
}

/// The backend of that name.
pub fn find(name: &str) -> Option<&'static dyn Backend> {
    ALL.iter().copied().find(|backend| backend.name() == name)
}

/// The names of all backends.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|backend| backend.name()).collect()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_is_found_by_its_name_and_has_options_of_its_own() {
        for (index, backend) in ALL.iter().enumerate() {
            assert_eq!(find(backend.name()), Some(*backend));
            assert!(backend.number() > 0);
            assert!(ALL[..index].iter().all(|other| other.number() != backend.number()));
            assert!(ALL[..index].iter().all(|other| other.name() != backend.name()));
            for option in backend.options() {
                assert!(!crate::address::OPTIONS.contains(&option.name), "{}", option.name);
            }
        }
        assert_eq!(find("nosuch"), None);
    }
}
