//! exploration
use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::echo::{Echo, EchoVerb};
use super::flows::Outbound;
use super::rig::{Rack, Start, Verb, Work};
use super::verbs_calls::VerbsCalls;
use super::{herd_calls, raw_write};

pub fn nics() -> Vec<(&'static str, Costs)> {
    vec![
        ("cx3", Costs::connectx3()),
        ("qdr", Costs::connectx3_qdr()),
        ("cib", Costs::connect_ib()),
        ("cx5", Costs::connectx5()),
    ]
}

type Run = Box<dyn Fn(Rack) -> Result<f64>>;

fn calls(clients: usize, batch: usize, threads: usize) -> VerbsCalls {
    VerbsCalls {
        machines: 11,
        server_threads: threads,
        clients,
        batch,
        dispatch_ns: 265 + 740 / batch as u64,
        measured_ns: 400_000,
    }
}

pub fn lines(costs: &Costs) -> Vec<(String, Vec<(f64, Run)>)> {
    let mut lines: Vec<(String, Vec<(f64, Run)>)> = Vec::new();
    for (batch, threads) in [(1, 10), (4, 10), (8, 10), (8, 20)] {
        let mut line: Vec<(f64, Run)> = Vec::new();
        for clients in [40, 60, 80, 90, 100, 110, 120, 130, 140, 160, 200, 240, 320, 400] {
            line.push((clients as f64, Box::new(move |rack| Ok(raw_write::run(&calls(clients, batch, threads), rack)?.rate))));
        }
        lines.push((format!("raw_write batch {batch} threads {threads}"), line));
    }
    let mut line: Vec<(f64, Run)> = Vec::new();
    for clients in [80, 160, 240, 400] {
        line.push((clients as f64, Box::new(move |rack| Ok(herd_calls::run(&calls(clients, 8, 10), rack)?.rate))));
    }
    lines.push(("herd batch 8".into(), line));
    for (request, response) in [(EchoVerb::Write, EchoVerb::Send), (EchoVerb::Write, EchoVerb::Write), (EchoVerb::Send, EchoVerb::Send)] {
        for threads in [6, 14] {
            let mut line: Vec<(f64, Run)> = Vec::new();
            for (clients, window) in [(25, 12), (40, 12), (51, 12), (60, 12), (75, 12), (75, 16), (84, 16), (80, 20), (50,40)] {
                let echo = Echo { server_threads: threads, clients, window, datagrams: true, ..Echo::of(request, response) };
                line.push(((clients * window) as f64, Box::new(move |rack| echo.rate_on(rack))));
            }
            lines.push((format!("echo {request:?} {response:?} threads {threads}"), line));
        }
    }
    for (name, ty, verb, all) in [
        ("write rc signaled", QpType::Rc, Verb::Write, true),
        ("write rc 1/4", QpType::Rc, Verb::Write, false),
        ("write uc", QpType::Uc, Verb::Write, false),
        ("read", QpType::Rc, Verb::Read, true),
    ] {
        for threads in [3, 4, 6, 10, 14] {
            for pairs in [1, 4, 8, 16] {
                for fetched in [false, true] {
                    if fetched && verb == Verb::Read { continue; }
                    let mut line: Vec<(f64, Run)> = Vec::new();
                    for window in [2, 4, 6, 8, 10, 12, 14, 16] {
                        let mut work = Work::of(verb, 32).window(window);
                        if all { work = work.all_signaled(); }
                        if fetched { work = work.fetched(); }
                        let mut costs = costs.clone();
                        if fetched { costs.pushes_any = false; }
                        let out = Outbound { costs, ty, work, threads, pairs, machines: 11 };
                        line.push((window as f64, Box::new(move |rack| Ok(out.run_on(rack)?.0))));
                    }
                    lines.push((format!("{name} threads {threads} pairs {pairs} fetched {fetched}"), line));
                }
            }
        }
    }
    lines
}

pub fn print(only: &str, what: &str) -> Result<()> {
    for (name, costs) in nics() {
        if !only.split(',').any(|o| o == name) { continue; }
        for (title, line) in lines(&costs) {
            if !title.contains(what) { continue; }
            println!("{name} {title}");
            let mut rates: Vec<Vec<f64>> = Vec::new();
            for (_, run) in &line {
                let mut of = Vec::new();
                for start in [(1, 0), (2, 0), (3, 3_000), (4, 30_000)] {
                    let costs = if title.contains("fetched true") { let mut c = costs.clone(); c.pushes_any = false; c } else { costs.clone() };
                    let rack = Rack::starting(&costs, Start { seed: start.0, spread_ns: start.1 });
                    of.push(run(rack)?);
                }
                rates.push(of);
            }
            let xs: String = line.iter().map(|(x, _)| format!("{x:7}")).collect();
            println!("   {xs}");
            for s in 0..4 {
                let row: String = rates.iter().map(|r| format!("{:7.2}", r[s])).collect();
                println!("   {row}");
            }
            let spread: String = rates.iter().map(|r| {
                let (lo, hi) = r.iter().fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
                let p = 100.0 * (hi / lo - 1.0);
                if p > 5.0 { format!("{p:6.0}!") } else { format!("{p:7.1}") }
            }).collect();
            println!(" % {spread}");
        }
    }
    Ok(())
}
