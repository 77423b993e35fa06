//! The server: replies with what came, copied once from the request to the reply.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use anyhow::{Context, Result};

use crate::Echo;

const WORK: u8 = 0;
const REST: u8 = 1;
const QUIT: u8 = 2;

/// Serves until the standard input ends.
pub(crate) fn serve(echo: &Echo, name: &str, size: usize) -> Result<()> {
    let server = echo.server_builder().initial_max_slice_len(size).create().context("no server")?;
    let order = orders()?;
    println!("ready {name}");
    loop {
        if let Some(request) = server.receive()? {
            let reply = request.loan_slice_uninit(request.payload().len())?;
            reply.write_from_slice(request.payload()).send()?;
            continue;
        }
        match order.load(Ordering::Relaxed) {
            WORK => {}
            // Sleeps, or returns at once if the order has changed since it was read.
            REST => thread::park(),
            _ => return Ok(()),
        }
    }
}

/// What a thread reads from the standard input.
fn orders() -> Result<Arc<AtomicU8>> {
    let order = Arc::new(AtomicU8::new(WORK));
    let (theirs, server) = (Arc::clone(&order), thread::current());
    thread::Builder::new().spawn(move || {
        let give = |order| {
            theirs.store(order, Ordering::Relaxed);
            server.unpark();
        };
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            give(if line == "rest" { REST } else { WORK });
        }
        give(QUIT);
    })?;
    Ok(order)
}
