//! The book's pages of figures.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};

use super::figure::{Drawn, Figure, Use, median_and_worst};
use super::picture::svg;
use super::study::{Study, StudyResult};

/// A page: its file, title, introduction, and figures.
struct Page {
    file: &'static str,
    title: &'static str,
    about: &'static str,
    figures: &'static [&'static str],
}

const PAGES: [Page; 4] = [
    Page {
        file: "figures-throughput.md",
        title: "Figures: throughput by verb and payload",
        about: "What a NIC does per second, into a server and out of it, by the verb, the transport and the bytes of a \
                message.",
        figures: &[
            "herd-3b",
            "herd-4b",
            "rfp-5",
            "kalia-1",
            "fasst-reads",
            "fasst-calls",
            "kalia-atomics",
        ],
    },
    Page {
        file: "figures-queue-pairs.md",
        title: "Figures: how many queue pairs, how much memory",
        about: "What is left when queue pairs no longer fit into the NIC's cache, or what is written to no longer into the \
                last-level cache. The survey's figure 2 (throughput against the number of queue pairs) shows what HERD, FaSST \
                and ScaleRPC have measured: their points stand for it.",
        figures: &[
            "scalerpc-3a",
            "scalerpc-1b",
            "herd-clients",
            "fasst-2",
            "erpc-1",
            "erpc-sessions",
            "scalerpc-3b",
            "write_imm",
        ],
    },
    Page {
        file: "figures-doorbells.md",
        title: "Figures: doorbells, caches, threads",
        about: "What the way from a CPU to the NIC costs: doorbells and batches, inlining and signaling, outstanding work, \
                threads that share a doorbell or a queue pair. The survey's figure 3 (doorbell batching and cache misses) is \
                Kalia et al., Fig. 13 and section 5; its figure 6 (shared queue pairs) is FaSST, section 3.3.",
        figures: &[
            "kalia-batch",
            "kalia-13",
            "herd-5",
            "kalia-sequencer",
            "rfp-3",
            "rfp-4",
            "fasst-shared",
            "fasst-core",
        ],
    },
    Page {
        file: "figures-latency.md",
        title: "Figures: latency",
        about: "One operation at a time.",
        figures: &["herd-2", "latency"],
    },
];

/// All generated files of the book, by their names under its source folder.
pub fn files(drawn: &[Drawn<'_>], results: &[StudyResult<'_>]) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for page in &PAGES {
        let mut text = format!("# {}\n\n{}\n\n{WARNING}\n", page.title, page.about);
        for name in page.figures {
            let drawn = drawn.iter().find(|drawn| drawn.figure.name == *name);
            let drawn = drawn.with_context(|| format!("no figure is called {name}"))?;
            section(&mut text, drawn);
            files.insert(format!("figures/{name}.svg"), svg(drawn)?);
        }
        files.insert(page.file.to_owned(), text);
    }
    files.insert("figures-errors.md".to_owned(), errors(drawn));
    files.insert("figures-backends.md".to_owned(), studies(results));
    for result in results {
        files.insert(format!("figures/{}.svg", result.study.name), result.studied.picture.clone());
    }
    Ok(files)
}

/// Figures that are on no page.
pub fn missing_figures(figures: &[Figure]) -> Vec<&'static str> {
    let is_shown = |name: &str| PAGES.iter().any(|page| page.figures.contains(&name));
    figures.iter().map(|figure| figure.name).filter(|name| !is_shown(name)).collect()
}

const WARNING: &str = "This page is written by `farcall-bench sim all --book book/src`. Hollow points are published, filled ones \
                       simulated. One set of constants per NIC serves all figures; *held out* are points that no constant was \
                       chosen by, and *not met* those that one set cannot meet, with the reason above the table.";

fn section(text: &mut String, drawn: &Drawn<'_>) {
    let Figure { name, title, source, x_label, y_label, notes, .. } = *drawn.figure;
    let _ = write!(
        text,
        "\n## {title}\n\n{source}. `farcall-bench sim {name}`\n\n![{title}](figures/{name}.svg)\n\n"
    );
    if !notes.is_empty() {
        let _ = write!(text, "{notes}\n\n");
    }
    let _ = writeln!(text, "| | {x_label} | published, {y_label} | simulated | error | |");
    let _ = writeln!(text, "|---|---|---|---|---|---|");
    for (series, outcomes) in &drawn.series {
        for outcome in outcomes {
            let _ = writeln!(
                text,
                "| {series} | {} | {:.2} | {:.2} | {:+.0} % | {} |",
                drawn.figure.at(outcome.x),
                outcome.published,
                outcome.simulated,
                100.0 * outcome.error(),
                outcome.used.name(),
            );
        }
    }
}

/// The section of studies of our own backends.
fn studies(results: &[StudyResult<'_>]) -> String {
    let mut text = String::from(
        "# Figures: backends, losses, crowds\n\nWhat the backends do on the simulated rack, where nothing is published that they could be compared \
         with. Written by `farcall-bench sim all --book book/src`.\n",
    );
    for result in results {
        let Study { name, title, notes, .. } = result.study;
        let _ = write!(
            text,
            "\n## {title}\n\n`farcall-bench sim {name}`\n\n![{title}](figures/{name}.svg)\n\n{notes}\n\n{}\n{}",
            result.table(),
            result.goals()
        );
    }
    text
}

/// The table of all figures' errors.
fn errors(drawn: &[Drawn<'_>]) -> String {
    let mut text = String::from(
        "# Figures: errors\n\nThe median and the worst error of each figure, in the published value's percent. \
         Written by `farcall-bench sim all --book book/src`.\n\n\
         | figure | source | points | median | worst | held out: median | worst | not met |\n|---|---|---|---|---|---|---|---|\n",
    );
    let percent =
        |(median, worst): (f64, f64)| format!("{:.0} % | {:.0} %", 100.0 * median, 100.0 * worst);
    let row = |name: &str, source: &str, of: &[&Drawn<'_>]| {
        let all = || of.iter().flat_map(|drawn| drawn.outcomes());
        let met = || all().filter(|outcome| outcome.used != Use::Missed);
        let held_out = || all().filter(|outcome| outcome.used == Use::HeldOut);
        let missed = all().count() - met().count();
        let held = match held_out().count() {
            0 => " | ".to_owned(),
            _ => percent(median_and_worst(held_out())),
        };
        let met = match met().count() {
            0 => " | ".to_owned(),
            _ => percent(median_and_worst(met())),
        };
        let missed = if missed == 0 { String::new() } else { missed.to_string() };
        format!("| {name} | {source} | {} | {met} | {held} | {missed} |\n", all().count())
    };
    for drawn in drawn {
        text += &row(drawn.figure.name, drawn.figure.source, &[drawn]);
    }
    text += &row("all", "", &drawn.iter().collect::<Vec<_>>());
    text
}
