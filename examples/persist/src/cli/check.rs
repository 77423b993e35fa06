//! `check`: which ways to write over the network are durable on this machine.

use anyhow::{Context, Result};
use farcall_persist::ways::{Domain, Machine, Way, auto, detect};

use super::args::CheckArgs;

/// Prints what is known of this machine, the whole table, why ways are refused here, and which one is the quickest.
pub(crate) fn run(args: &CheckArgs) -> Result<bool> {
    let found =
        detect(&args.dir).with_context(|| format!("cannot look at {}", args.dir.display()))?;
    for fact in &found.facts {
        println!("{fact}");
    }
    let domain = args.domain.map_or(found.domain, Domain::from);
    let machine = Machine { domain, flush: args.flush.into() };
    let told = if args.domain.is_some() { ", as you say" } else { "" };
    println!("so the persistence domain is: {domain}{told}\n");
    print_table(machine);
    println!();
    for way in Way::ALL {
        if let Err(refused) = way.durability(machine) {
            println!("{way}: {}", refused.reason);
        }
    }
    let choice = auto(machine, args.size);
    println!("\nauto takes, for {} bytes: {}; {}", args.size, choice.way, choice.why);
    Ok(true)
}

/// All ways in all domains. The machine's own domain is marked.
fn print_table(machine: Machine) {
    print!("{:20}", "durable when it ends");
    for domain in Domain::ALL {
        let mark = if domain == machine.domain { "*" } else { "" };
        print!("{:>19}", format!("{mark}{domain}"));
    }
    println!();
    for way in Way::ALL {
        print!("{way:20}");
        for domain in Domain::ALL {
            let is_durable = way.durability(Machine { domain, ..machine }).is_ok();
            print!("{:>19}", if is_durable { "yes" } else { "no" });
        }
        println!();
    }
}
