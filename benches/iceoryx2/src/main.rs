//! Echo calls by iceoryx2's request-response, for `farcall-bench peers`: see `benches/ucx/main.c` for the arguments, and
//! for what both ends are told and answer. Both ends poll.
#![forbid(unsafe_code)]

mod client;
#[path = "../../src/clock.rs"]
#[allow(dead_code)]
mod clock;
#[path = "../../src/cores.rs"]
#[allow(dead_code)]
mod cores;
mod server;

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;

/// Requests and replies are bytes without headers.
type Echo = PortFactory<ipc::Service, [u8], (), [u8], ()>;

fn main() -> ExitCode {
    set_log_level(LogLevel::Error);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iceoryx2-echo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (role, core, size, window, name) = match words[..] {
        ["server", core, size, window] => {
            let name = format!("farcall-bench/{}", std::process::id());
            ("server", core, size, window, name)
        }
        ["client", core, size, window, name] => ("client", core, size, window, name.to_owned()),
        _ => bail!("iceoryx2-echo server CORE SIZE WINDOW | client CORE SIZE WINDOW NAME"),
    };
    cores::pin_child(core.parse()?)?;
    let (size, window) = (size.parse()?, window.parse()?);
    let node = NodeBuilder::new().create::<ipc::Service>().context("no node")?;
    let echo = node
        .service_builder(&name.as_str().try_into()?)
        .request_response::<[u8], [u8]>()
        .max_clients(1)
        .max_servers(1)
        .max_active_requests_per_client(window)
        .max_loaned_requests(window)
        .max_response_buffer_size(1)
        .max_borrowed_responses_per_pending_response(1)
        .open_or_create()
        .context("no service")?;
    match role {
        "server" => server::serve(&echo, &name, size),
        _ => client::obey(&echo, size, window),
    }
}
