//! `farcall info`: devices, their capabilities, the backends that run on them, and the relevant system
//! limits; or a running server.

mod device;
mod layout;
mod server;
mod system;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::credentials::Credentials;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this device, or the address of a running server, such as shm://NAME: then what it has refused so far, and its connections.
    #[arg(value_name = "DEVICE|ADDRESS")]
    of: Option<String>,
    #[command(flatten)]
    credentials: Credentials,
    /// One line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The whole report. Scripts read the names of the fields: only add fields.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// Whether this program was built for RDMA devices.
    ibverbs: bool,
    devices: Vec<device::Device>,
    /// Backends that need no device, at tcp:// addresses.
    without_device: Vec<device::Backend>,
    system: system::System,
    /// NUMA nodes, and what is on which.
    layout: layout::Layout,
    /// Possible problems with RDMA, and how to fix them.
    hints: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(address) = args.of.as_deref().filter(|of| of.contains("://")) {
        return server::run(address, &args.credentials, args.json);
    }
    // Before a device is opened, which may raise the limits.
    let system = system::System::look();
    let devices = device::all(args.of.as_deref())?;
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        ibverbs: cfg!(feature = "ibverbs"),
        hints: system.hints(farcall_verbs::Device::rdma_support().err(), &devices),
        layout: layout::Layout::look(&devices),
        devices,
        without_device: device::backends_without_device(),
        system,
    };
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        text::write(&mut out, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}
