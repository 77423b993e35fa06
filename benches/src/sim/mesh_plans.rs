//! Plans of a mesh: what their queue pairs, and sharing them, cost.

use anyhow::Result;
use farcall::mesh::{Mesh, Plan};
use farcall_verbs::sim::Costs;

use super::measured::MeasuredNic;
use super::rig::Rack;
use super::shared::Group;
use super::study::{Goal, Studied, Study};
use crate::chart::{Lines, charts};

/// Machines that are simulated. Further nodes are emulated as in FaSST's Fig. 2, by as many more queue pairs.
const MACHINES: usize = 11;

/// READs that a thread keeps outstanding; the better of these counts.
const WINDOWS: [usize; 2] = [8, 32];

/// The warm-up, and the time that is measured.
const MEASURED_NS: u64 = 100_000;

pub(super) fn study() -> Study {
    Study {
        name: "mesh-plans",
        title: "Plans of a mesh, by the number of nodes",
        notes: "READs of 32 B of each machine, where all read from each other by [one of the plans](threads-and-cores.md#meshes): the program of [FaSST's shared queue pairs](figures-doorbells.md#reads-of-one-thread-against-the-queue-pairs-that-it-works-on-connect-ib) on 11 machines, whose threads have additional queue pairs to each other in place of the missing nodes; 8 threads with ConnectX-3, 14 with Connect-IB, the better of 8 and 32 READs outstanding for each thread. Threads that share queue pairs share an opened device, others have one of their own. A queue pair serves both of its ends here; a NIC has twice as many where each node also dials one, as farcall's calls do.",
        run,
    }
}

/// Millions of READs per second of each machine.
fn rate(costs: &Costs, nodes: usize, threads: usize, plan: Plan, window: usize) -> Result<f64> {
    let plan = Mesh::new(nodes, threads)?.plan(plan)?;
    let mut rack = Rack::new(costs);
    let machines = rack.machines(MACHINES)?;
    let mut all = Vec::new();
    // The groups of threads that share queue pairs, and how many each has.
    let mut sizes = Vec::new();
    for thread in 0..threads as u16 {
        match plan.connections(0).find(|it| it.threads.start == thread) {
            None => continue,
            Some(first) => sizes.push(first.threads.len()),
        }
        let groups = machines.iter().map(|machine| Group::new(rack.program(machine)?));
        all.push(groups.collect::<Result<Vec<_>>>()?);
    }
    let dialled = plan.connections_of_node() * (nodes / MACHINES) / (nodes - 1) / sizes.len();
    for groups in &mut all {
        for there in 1..MACHINES {
            let (before, from) = groups.split_at_mut(there);
            for here in before {
                for _ in 0..dialled {
                    here.connect(&mut from[0])?;
                }
            }
        }
    }
    for (number, (groups, size)) in all.into_iter().zip(sizes).enumerate() {
        for (machine, group) in groups.into_iter().enumerate() {
            let seed = (number * MACHINES + machine) * threads;
            group.spawn(&mut rack, size, window, seed as u64)?;
        }
    }
    Ok(rack.rate(MEASURED_NS) / MACHINES as f64)
}

fn best_rate(costs: &Costs, nodes: usize, threads: usize, plan: Plan) -> Result<f64> {
    let mut best = 0.0;
    for window in WINDOWS {
        best = f64::max(best, rate(costs, nodes, threads, plan, window)?);
    }
    Ok(best)
}

fn run() -> Result<Studied> {
    let (mut rows, mut pictures) = (Vec::new(), Vec::new());
    let mut by_plan = Vec::new();
    for (nic, name) in
        [(MeasuredNic::ConnectX3, "ConnectX-3"), (MeasuredNic::ConnectIb, "Connect-IB")]
    {
        let threads = nic.cores();
        let plans = [
            (Plan::AllToAll, "all to all".to_owned()),
            (Plan::SameNumber, "same number".to_owned()),
            (Plan::Shared { by: 2 }, "shared by 2".to_owned()),
            (Plan::Shared { by: threads as u16 }, format!("shared by {threads}")),
        ];
        let mut series = Vec::new();
        for (plan, text) in plans {
            let mut line = Vec::new();
            for nodes in [11, 33, 99] {
                let rate = best_rate(&nic.costs(), nodes, threads, plan)?;
                let queue_pairs = Mesh::new(nodes, threads)?.plan(plan)?.connections_of_node();
                rows.push(vec![
                    name.to_owned(),
                    text.clone(),
                    nodes.to_string(),
                    queue_pairs.to_string(),
                    format!("{rate:.1}"),
                ]);
                line.push((nodes as f64, rate));
            }
            by_plan.push(line.iter().map(|(_, rate)| *rate).collect::<Vec<_>>());
            series.push((text, line));
        }
        pictures.push(Lines {
            title: format!("{name}, {threads} threads"),
            x_label: "nodes",
            y_label: "M READs/s",
            series,
            is_logarithmic: true,
        });
    }
    let [_, _, _, _, ib_all, ib_same, ib_two, _] = &by_plan[..] else { anyhow::bail!("all plans") };
    Ok(Studied {
        header: &["NIC", "plan", "nodes", "queue pairs of a NIC", "M READs/s"],
        rows,
        picture: charts(&pictures, 2)?,
        goals: vec![
            Goal::at_least(
                "same number, relative to all to all, with 99 nodes and Connect-IB",
                ib_same[2] / ib_all[2],
                1.0,
            ),
            Goal::at_least(
                "same number, relative to shared by 2, with 11 nodes and Connect-IB",
                ib_same[0] / ib_two[0],
                1.2,
            ),
        ],
    })
}
