//! The book's pages of figures.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};

use super::figure::{Drawn, Figure, Use, median_and_worst};
use super::measured::{self, Simulated};
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
        about: "Operations per second into a server and out of it, by verb, transport and message size.",
        figures: &[
            "herd-3b",
            "herd-4b",
            "rfp-5",
            "kalia-1",
            "fasst-reads",
            "fasst-calls",
            "rfp-9",
            "rfp-10",
            "rfp-14",
            "kalia-atomics",
        ],
    },
    Page {
        file: "figures-queue-pairs.md",
        title: "Figures: how many queue pairs, how much memory",
        about: "Throughput when the queue pairs no longer fit into the NIC's cache, or the written memory no longer fits into \
                the last-level cache. HERD, FaSST and ScaleRPC measured throughput against the number of queue pairs; this \
                page uses their points.",
        figures: &[
            "scalerpc-3a",
            "scalerpc-1b",
            "herd-6",
            "herd-clients",
            "fasst-2",
            "erpc-1",
            "erpc-sessions",
            "scalerpc-3b",
            "scalerpc-8",
            "scalerpc-9",
            "scalerpc-9-rate",
            "scalerpc-10",
            "scalerpc-10-pcie",
        ],
    },
    Page {
        file: "figures-doorbells.md",
        title: "Figures: doorbells, caches, threads",
        about: "The cost of passing work from a CPU to the NIC: doorbells and batches, inlining and signaling, outstanding work, \
                and threads that share a doorbell or a queue pair. The points on doorbell batching and cache misses come from \
                Kalia et al., Fig. 13 and section 5; those on shared queue pairs from FaSST, section 3.3.",
        figures: &[
            "kalia-batch",
            "kalia-13",
            "kalia-13-pcie",
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
        about: "Latencies with one operation outstanding.",
        figures: &["herd-2", "latency", "durable"],
    },
];

/// All generated files of the book, by their names under its source folder.
pub fn files(
    drawn: &[Drawn<'_>],
    results: &[StudyResult<'_>],
    simulated: &[Simulated],
) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for page in &PAGES {
        let of_name = |name: &&str| {
            let drawn = drawn.iter().find(|drawn| drawn.figure.name == *name);
            drawn.with_context(|| format!("no figure is called {name}"))
        };
        let figures = page.figures.iter().map(of_name).collect::<Result<Vec<_>>>()?;
        let finding = finding(&figures);
        let mut text = format!("# {}\n\n{finding}\n\n{}\n\n{WARNING}\n", page.title, page.about);
        for drawn in figures {
            section(&mut text, drawn);
            files.insert(format!("figures/{}.svg", drawn.figure.name), svg(drawn)?);
        }
        files.insert(page.file.to_owned(), text);
    }
    files.insert("figures-errors.md".to_owned(), errors(drawn));
    files.insert("figures-backends.md".to_owned(), studies(results));
    files.insert("figures-measured.md".to_owned(), measured::page(simulated));
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

const WARNING: &str = "`farcall-bench sim all --book book/src` generates this page. Hollow points are published, filled points are \
                       simulated. All figures of a NIC use one set of constants. *Held out* marks points that were not used \
                       to choose a constant. *Not met* marks points that this set of constants does not meet; the text above \
                       the table gives the reason. Every other point is within 20 %.";

/// What a page shows, in two sentences: how many of its points the model meets, and whether it errs to one side.
fn finding(figures: &[&Drawn<'_>]) -> String {
    let all: Vec<_> = figures.iter().flat_map(|drawn| drawn.outcomes()).collect();
    let met: Vec<_> = all.iter().copied().filter(|outcome| outcome.used != Use::Missed).collect();
    let high = all.iter().filter(|outcome| outcome.error().is_sign_positive()).count();
    let (median, worst) = median_and_worst(met.iter().copied());
    format!(
        "**What was found.** The model meets {} of {} published points, with a median error of {:.0} %, the worst {:.0} %. \
         Of all points, {high} are simulated too high and {} too low.",
        met.len(),
        all.len(),
        100.0 * median,
        100.0 * worst,
        all.len() - high,
    )
}

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
        "# Figures: backends, losses, crowds\n\nfarcall's backends on the simulated rack. These runs have no published counterpart. For comparisons \
         with published systems see [`scale`, RawWrite and ScaleRPC](figures-queue-pairs.md#calls-of-32-b-by-the-number-of-clients-connectx-3), \
         [`datagram` and eRPC](figures-queue-pairs.md#calls-of-32-b-of-each-machine-with-20000-sessions-25-gbits-ethernet) and \
         [`datagram` and FaSST](figures-throughput.md#calls-of-32-b-of-each-machine-all-to-all). \
         `farcall-bench sim all --book book/src` generates this page.\n",
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
    let all: Vec<_> = drawn.iter().flat_map(|drawn| drawn.outcomes()).collect();
    let not_met = all.iter().filter(|outcome| outcome.used == Use::Missed).count();
    let (median, worst) = median_and_worst(all.iter().copied());
    let mut text = format!(
        "# Figures: errors\n\nThe median and the worst error of each figure, in percent of the published value. \
         The columns *median* and *worst* leave out the {not_met} points that are not met; over all {} points the \
         median is {:.0} % and the worst error {:.0} %. `farcall-bench sim all --book book/src` generates this page.\n\n\
         | figure | source | points | median | worst | held out: median | worst | not met |\n|---|---|---|---|---|---|---|---|\n",
        all.len(),
        100.0 * median,
        100.0 * worst,
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
