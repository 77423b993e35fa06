//! Somebody between the two ends of TCP connections, who changes bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use farcall::RunningServer;

/// What somebody between the ends does to the bytes on their way.
#[derive(Default)]
pub(crate) struct Between {
    /// To which end, and the number of the byte that is changed.
    pub(crate) change: Option<(Toward, usize)>,
    /// The next bytes to this end are changed.
    pub(crate) change_next: Mutex<Option<Toward>>,
    /// A byte was changed.
    pub(crate) has_changed: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Toward {
    Server,
    Client,
}

impl Between {
    /// The address of somebody who passes on to the server what clients say, and back.
    pub(crate) fn listen(self: &Arc<Between>, server: &RunningServer) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_, own) = server.address().split_once("://").unwrap();
        let own = own.split('?').next().unwrap().to_owned();
        let theirs = listener.local_addr().unwrap().to_string();
        let address = server.address().replace(&own, &theirs);
        let between = Arc::clone(self);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&own).unwrap());
                let ways = [
                    (Toward::Server, client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (Toward::Client, server, client),
                ];
                for (toward, from, to) in ways {
                    let between = Arc::clone(&between);
                    std::thread::spawn(move || between.pass_on(toward, from, to));
                }
            }
        });
        address
    }

    fn pass_on(&self, toward: Toward, mut from: TcpStream, mut to: TcpStream) {
        let (mut passed, mut buffer) = (0, [0; 4096]);
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if let Some((_, at)) = self.change.filter(|(of, _)| *of == toward)
                && let Some(byte) = at.checked_sub(passed).and_then(|at| buffer[..len].get_mut(at))
            {
                *byte ^= 1;
                self.has_changed.store(true, Ordering::SeqCst);
            }
            if self.change_next.lock().unwrap().take_if(|of| *of == toward).is_some() {
                buffer[len - 1] ^= 1;
                self.has_changed.store(true, Ordering::SeqCst);
            }
            passed += len;
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}
