//! The command `farcall-bench sim`.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use farcall_bench::sim::{self, book, measured, picture};

#[derive(Args)]
pub(crate) struct Options {
    /// Figures, `measured` for the measured configurations, or `all`
    #[arg(required_unless_present = "list")]
    figures: Vec<String>,
    /// Of the measured configurations, simulates only one in this many
    #[arg(long, default_value = "1", conflicts_with = "book")]
    one_in: NonZeroUsize,
    /// Lists the figures
    #[arg(long)]
    list: bool,
    /// Draws each figure into this directory, as SVG
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    /// Writes the book's pages of all figures into this directory
    #[arg(long, value_name = "DIRECTORY")]
    book: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (figures, studies) = (sim::figures(), sim::studies());
    if options.list {
        for figure in &figures {
            println!("{:18} {}; {}", figure.name, figure.title, figure.source);
        }
        studies.iter().for_each(|study| println!("{:18} {}", study.name, study.title));
        println!(
            "{:18} One-sided operations in the configurations that FaSST's authors measured",
            "measured"
        );
        return Ok(());
    }
    let names = || {
        let names = figures.iter().map(|figure| figure.name);
        names.chain(studies.iter().map(|study| study.name)).chain(["measured", "all"])
    };
    for wanted in &options.figures {
        if names().all(|name| name != wanted) {
            bail!("no figure is called {wanted}; `farcall-bench sim --list` tells which there are");
        }
    }
    let is_wanted = |name| options.figures.iter().any(|wanted| wanted == "all" || wanted == name);
    let mut drawn = Vec::new();
    for figure in figures.iter().filter(|figure| is_wanted(figure.name)) {
        let figure = figure.draw()?;
        println!("{}", figure.table());
        drawn.push(figure);
    }
    let mut results = Vec::new();
    for study in studies.iter().filter(|study| is_wanted(study.name)) {
        let study = study.evaluate()?;
        println!("{}: {}\n{}{}", study.study.name, study.study.title, study.table(), study.goals());
        results.push(study);
    }
    let mut simulated = Vec::new();
    if is_wanted("measured") {
        let configurations = measured::configurations()?;
        let some: Vec<_> = configurations.into_iter().step_by(options.one_in.get()).collect();
        simulated = measured::simulate(&some)?;
        println!("{}\n{}", measured::table(&simulated), measured::summary(&simulated));
    }
    if let Some(directory) = &options.svg {
        fs::create_dir_all(directory)?;
        for figure in &drawn {
            let file = directory.join(figure.figure.name).with_extension("svg");
            fs::write(file, picture::svg(figure)?)?;
        }
        for result in &results {
            let file = directory.join(result.study.name).with_extension("svg");
            fs::write(file, &result.studied.picture)?;
        }
    }
    if let Some(directory) = &options.book {
        for (file, text) in book::files(&drawn, &results, &simulated)? {
            let file = directory.join(file);
            fs::create_dir_all(file.parent().unwrap_or(directory))?;
            fs::write(file, text)?;
        }
    }
    Ok(())
}
