//! Refuses settings that a server cannot work with, before it makes anything.

use crate::error::BindError;
use crate::transport::BindOptions;
use std::thread;

/// Most threads of one server.
const MAX_THREADS: usize = 1024;

/// Most `async` handlers in flight on one thread. Room for their wake-ups is allocated when the thread starts: 16 MiB for so many.
const MAX_ASYNC_CALLS: usize = 1 << 20;

/// The highest core that an affinity mask of the system's usual size can name.
const MAX_CORE: usize = 1023;

pub(super) fn check_threads(threads: usize) -> Result<(), BindError> {
    match threads {
        1..=MAX_THREADS => Ok(()),
        _ => Err(BindError::Threads { threads, max: MAX_THREADS }),
    }
}

pub(super) fn check_async_calls(calls: usize) -> Result<(), BindError> {
    let problem = match calls {
        1..=MAX_ASYNC_CALLS => return Ok(()),
        0 => "no async handler could run; choose 1 to 1,048,576".to_owned(),
        _ => format!("{calls} are too many for one thread; choose 1 to 1,048,576"),
    };
    Err(BindError::Setting { setting: "async_calls", problem })
}

pub(super) fn check_bind(options: &BindOptions) -> Result<(), BindError> {
    let (setting, problem) = if options.handshake_timeout.is_zero() {
        ("handshake_timeout", "no client could finish its handshake in no time; the default is 5 s")
    } else if options.max_clients == 0 {
        ("max_clients", "no client could connect; the default is 4,096")
    } else {
        return Ok(());
    };
    Err(BindError::Setting { setting, problem: problem.to_owned() })
}

/// Refuses cores that no thread can be pinned to. It tries, on a thread of its own: a caller that is pinned itself sees
/// only its own core in the list of cores.
pub(super) fn check_cores(cores: &[usize]) -> Result<(), BindError> {
    if cores.is_empty() {
        return Ok(());
    }
    let wanted = cores.to_vec();
    let can_pin = |id: &usize| {
        *id <= MAX_CORE && core_affinity::set_for_current(core_affinity::CoreId { id: *id })
    };
    let try_all = move || {
        let core = wanted.into_iter().find(|core| !can_pin(core))?;
        Some(BindError::NoSuchCore { core, available: (0..=MAX_CORE).filter(can_pin).collect() })
    };
    let thread = thread::Builder::new().name("farcall-cores".into());
    let tried = thread.spawn(try_all).map_err(|cause| {
        let doing = "starting a thread that tries the cores";
        BindError::Io { address: "this process".into(), doing, cause }
    })?;
    match tried.join() {
        Ok(Some(error)) => Err(error),
        Ok(None) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Server, ServerBuilder};
    use core::time::Duration;

    fn problem(checked: Result<(), BindError>) -> String {
        match checked {
            Err(BindError::Setting { setting, problem }) => format!("{setting}: {problem}"),
            other => panic!("not refused as a setting: {other:?}"),
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_the_reason() {
        let none = problem(check_async_calls(0));
        assert!(
            none.contains("no async handler could run") && none.contains("1,048,576"),
            "{none}"
        );
        let many = problem(check_async_calls(usize::MAX));
        assert!(many.contains(&usize::MAX.to_string()) && many.contains("1,048,576"), "{many}");
        let usual = BindOptions::default();
        let at_once = BindOptions { handshake_timeout: Duration::ZERO, ..usual.clone() };
        assert!(problem(check_bind(&at_once)).contains("handshake_timeout: no client could"));
        let nobody = BindOptions { max_clients: 0, ..usual };
        assert!(problem(check_bind(&nobody)).contains("max_clients: no client could connect"));
    }

    #[test]
    fn settings_at_the_edges_are_taken() {
        assert!(check_async_calls(1).is_ok());
        assert!(check_async_calls(MAX_ASYNC_CALLS).is_ok());
        let long = Duration::MAX;
        let options =
            BindOptions { handshake_timeout: long, max_clients: 1, ..BindOptions::default() };
        assert!(check_bind(&options).is_ok());
    }

    #[test]
    fn a_builder_refuses_them_before_it_listens() {
        // They come before the missing service.
        let refused = |builder: ServerBuilder| match builder.serve_all(&[]) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it listens"),
        };
        assert!(refused(Server::builder().async_calls(0)).contains("async_calls"));
        assert!(refused(Server::builder().max_clients(0)).contains("max_clients"));
        let no_time = Server::builder().handshake_timeout(Duration::ZERO);
        assert!(refused(no_time).contains("handshake_timeout"));
    }
}
