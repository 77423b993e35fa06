//! HERD (Kalia, Kaminsky, Andersen, SIGCOMM 2014): ConnectX-3 at 56 Gbit/s.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::echo::{Echo, EchoVerb};
use super::figure::{Axis, Figure, Series};
use super::flows::{Inbound, Outbound, measured_ns};
use super::rig::{Rack, Thread, Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![inbound(), outbound(), echo(), all_to_all(), connected()]
}

fn bytes_in(ty: QpType, verb: Verb) -> impl Fn(f64) -> Result<f64> + Clone {
    move |len| {
        let len = len as usize;
        let work = match verb {
            Verb::Write if len > 256 => Work::of(verb, len).fetched(),
            _ => Work::of(verb, len),
        };
        Inbound { costs: Costs::connectx3(), ty, work, machines: 16, threads: 2 }.rate()
    }
}

fn inbound() -> Figure {
    let write =
        [(32.0, 34.3), (64.0, 33.1), (128.0, 30.4), (256.0, 23.1), (512.0, 11.9), (1024.0, 6.2)];
    let read =
        [(32.0, 25.6), (64.0, 24.2), (128.0, 20.0), (256.0, 18.6), (512.0, 11.6), (1024.0, 6.2)];
    let reliable = [(32.0, 35.6), (64.0, 34.4), (128.0, 32.8), (256.0, 20.2)];
    Figure {
        name: "herd-3b",
        title: "Inbound throughput by verb and payload, ConnectX-3",
        source: "HERD (SIGCOMM 2014), Fig. 3b",
        x_label: "payload, B",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "16 client machines with two threads each, one queue pair and a window of 16 per thread. The server's CPU is idle.",
        series: vec![
            Series::new("WRITE, UC", &write, bytes_in(QpType::Uc, Verb::Write))
                .held_out_at(&[64.0]),
            Series::new("READ, RC", &read, bytes_in(QpType::Rc, Verb::Read))
                .held_out_at(&[64.0, 512.0, 1024.0]),
            Series::new("WRITE, RC", &reliable, bytes_in(QpType::Rc, Verb::Write))
                .held_out_at(&[64.0, 128.0, 256.0]),
        ],
    }
}

fn bytes_out(ty: QpType, verb: Verb, inline: bool) -> impl Fn(f64) -> Result<f64> + Clone {
    move |len| {
        let work = Work { inline, ..Work::of(verb, len as usize).window(8) };
        Outbound { costs: Costs::connectx3(), ty, work, threads: 16, pairs: 1, machines: 16 }.rate()
    }
}

fn outbound() -> Figure {
    let inline = [(28.0, 38.0), (88.0, 26.3), (150.0, 17.6), (210.0, 13.2)];
    let datagram = [(60.0, 26.2), (124.0, 17.6), (188.0, 13.4), (252.0, 10.0)];
    let fetched = [(4.0, 21.4), (64.0, 17.8), (256.0, 12.3)];
    let read = [(64.0, 21.9), (256.0, 17.9)];
    Figure {
        name: "herd-4b",
        title: "Outbound throughput by verb and payload, ConnectX-3",
        source: "HERD (SIGCOMM 2014), Fig. 4b",
        x_label: "payload, B",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "16 server processes send to 16 machines, each with one queue pair and a window of 8. The steps in the inline curves come from the CPU: it pushes an inline work request over MMIO, cache line by cache line.",
        series: vec![
            Series::new("WRITE, UC, inline", &inline, bytes_out(QpType::Uc, Verb::Write, true)),
            Series::new("SEND, UD, inline", &datagram, bytes_out(QpType::Ud, Verb::Send, true))
                .held_out_at(&[124.0, 188.0, 252.0]),
            Series::new("WRITE, UC", &fetched, bytes_out(QpType::Uc, Verb::Write, false)),
            Series::new("READ, RC", &read, bytes_out(QpType::Rc, Verb::Read, false)),
        ],
    }
}

const STEPS: [&str; 4] = ["basic", "+ unreliable", "+ unsignaled", "+ inline"];

fn echoes(request: EchoVerb, response: EchoVerb) -> impl Fn(f64) -> Result<f64> + Clone {
    move |step| {
        let (reliable, signaled, inline) = (step < 1.0, step < 2.0, step >= 3.0);
        let datagrams = !reliable && request == EchoVerb::Write;
        Echo { reliable, datagrams, signaled, inline, ..Echo::of(request, response) }
            .rate(&Costs::connectx3())
    }
}

fn echo() -> Figure {
    let sends = [(0.0, 13.5), (1.0, 13.6), (2.0, 19.5), (3.0, 21.0)];
    let writes = [(0.0, 15.5), (1.0, 16.9), (2.0, 18.5), (3.0, 26.0)];
    let mixed = [(0.0, 15.5), (1.0, 17.5), (2.0, 19.3), (3.0, 26.0)];
    Figure {
        name: "herd-5",
        title: "ECHOs of 32 B, each optimization with those before, ConnectX-3",
        source: "HERD (SIGCOMM 2014), Fig. 5",
        x_label: "with",
        y_label: "M/s",
        axis: Axis::Names(&STEPS),
        notes: "14 server threads, and 14 clients with a window of 8. Unreliable messages use UC, except the SENDs of WRITE-SEND, which use UD.",
        series: vec![
            Series::new("SEND-SEND", &sends, echoes(EchoVerb::Send, EchoVerb::Send)),
            Series::new("WRITE-WRITE", &writes, echoes(EchoVerb::Write, EchoVerb::Write))
                .held_out_at(&[1.0, 2.0, 3.0]),
            Series::new("WRITE-SEND", &mixed, echoes(EchoVerb::Write, EchoVerb::Send)).held_out(),
        ],
    }
}

/// Messages that a process has outstanding.
const PROCESS_WINDOW: usize = 32;

/// A process on each of N machines, with a queue pair to each of N processes of a server.
fn all_in(processes: f64) -> Result<f64> {
    let processes = processes as usize;
    let mut rack = Rack::new(&Costs::connectx3());
    let server = rack.machine()?;
    let clients = rack.machines(processes)?;
    let mut kept = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let work = Work::of(Verb::Write, 32).window(PROCESS_WINDOW / processes);
        let mut thread = Thread::new(&rack, client, work, number as u64)?;
        for there in 0..processes {
            let block = [(64 * (number * processes + there) as u64, 32)];
            kept.push(thread.connect(QpType::Uc, &server, &block)?);
        }
        rack.spawn(client.node, thread);
    }
    Ok(rack.arriving(&server, measured_ns(processes * PROCESS_WINDOW)))
}

/// N processes of a server, each with a queue pair to each of N machines, or with one for datagrams to all.
fn all_out(ty: QpType) -> impl Fn(f64) -> Result<f64> + Clone {
    move |processes| {
        let (costs, threads) = (Costs::connectx3(), processes as usize);
        let (verb, pairs) = match ty {
            QpType::Ud => (Verb::Send, 1),
            _ => (Verb::Write, threads),
        };
        let work = Work::of(verb, 32).window(PROCESS_WINDOW / pairs);
        Outbound { costs, ty, work, threads, pairs, machines: threads }.rate()
    }
}

fn all_to_all() -> Figure {
    let into = [(1.0, 6.9), (4.0, 21.5), (8.0, 29.5), (16.0, 35.5)];
    let out = [(1.0, 6.7), (4.0, 24.9), (8.0, 18.4), (16.0, 5.5)];
    let datagrams = [(1.0, 7.0), (4.0, 26.0), (8.0, 26.0), (16.0, 24.9)];
    Figure {
        name: "herd-6",
        title: "Small messages between N processes of a server and N machines, ConnectX-3",
        source: "HERD (SIGCOMM 2014), Fig. 6",
        x_label: "N",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "32 B, inline. A WRITE has a queue pair for each process and machine, so N x N of them in the server; a datagram leaves through its process's only queue pair. A process has 32 messages outstanding; the paper does not name its window. Not met: WRITEs out of the server with N = 8. The 64 contexts fit into the model's cache, as FaSST's measured configurations demand.",
        series: vec![
            Series::new("WRITE, UC, into the server", &into, all_in).held_out(),
            Series::new("WRITE, UC, out of the server", &out, all_out(QpType::Uc))
                .held_out()
                .missed_at(&[8.0]),
            Series::new("SEND, UD, out of the server", &datagrams, all_out(QpType::Ud)).held_out(),
        ],
    }
}

/// WRITEs of many clients on 16 machines, each with its own queue pair, into one server.
fn many(clients: f64) -> Result<f64> {
    let (work, machines) = (Work::of(Verb::Write, 32).window(4), 16);
    let threads = clients as usize / machines;
    Inbound { costs: Costs::connectx3(), ty: QpType::Uc, work, machines, threads }.rate()
}

fn connected() -> Figure {
    Figure {
        name: "herd-clients",
        title: "UC WRITEs of 32 B of many clients into one server, ConnectX-3",
        source: "HERD (SIGCOMM 2014), section 3.3",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "One queue pair and 4 outstanding WRITEs per client.",
        series: vec![Series::new("WRITE, UC", &[(1600.0, 30.0)], many).held_out()],
    }
}
