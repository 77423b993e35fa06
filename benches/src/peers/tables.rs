//! The report as Markdown tables, for terminals and for pages alike.

use std::fmt::Write as _;

use super::report::{Cell, Name, Report, Run, Silence};

/// The size of the first table, if it was measured; otherwise the first size.
const SIZE: usize = 32;

/// The row of the wake-ups after silence.
const FUTEX: &str = "futex, there and back";

/// How a figure of a column is shown.
type Format = fn(&Cell, &Run) -> String;

impl Report {
    /// Formats what was measured with whom, a table of one size, one for each window, and one of the silences.
    pub fn table(&self) -> String {
        let mut text = self.heading();
        let windows = self.windows();
        for table in
            [vec![self.one_size(&windows)], self.by_size(&windows), self.after_silence()].concat()
        {
            text.push('\n');
            text.push_str(&table);
        }
        for why in self.all_failures() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\nfailed: {why}");
        }
        text
    }

    fn heading(&self) -> String {
        let [server, client] = self.cores;
        let cache = match self.shared_cache_level {
            Some(level) => format!("which share a level-{level} cache"),
            None => "which share no cache".into(),
        };
        let range = |of: fn(&Cell) -> u64| {
            let values = || self.cells.iter().map(of);
            let [least, most] = [values().min(), values().max()];
            let [least, most] = [least, most].map(|bound| micros(bound.unwrap_or_default()));
            if least == most { least } else { format!("{least} to {most}") }
        };
        format!(
            "Echo calls: servers on core {server}, clients on core {client}, {cache}. There and back, a cache line takes {} us \
             between them, and a wake-up by futex {} us.\n",
            range(|cell| cell.line_ns),
            range(|cell| cell.futex_ns)
        )
    }

    fn windows(&self) -> Vec<usize> {
        let mut windows: Vec<_> = self.cells.iter().map(|cell| cell.window).collect();
        windows.dedup();
        windows
    }

    /// Peers as rows: medians and the line's multiple for calls that are alone, rates for the others.
    fn one_size(&self, windows: &[usize]) -> String {
        let sizes = || self.cells.iter().map(|cell| cell.size);
        let size = sizes().find(|size| *size == SIZE).or(sizes().next()).unwrap_or_default();
        let cells = windows.iter().filter_map(|window| self.cell(size, *window));
        let mut head = vec![format!("{size} B, there and back")];
        let mut columns: Vec<(&Cell, Format)> = Vec::new();
        for cell in cells {
            if cell.window == 1 {
                head.extend(["p50, us", "p99, us", "x the line"].map(str::to_owned));
                columns.push((cell, |_, run| micros(run.p50_ns)));
                columns.push((cell, |_, run| micros(run.p99_ns)));
                columns.push((cell, |cell, run| {
                    format!("{:.1}", run.p50_ns as f64 / cell.line_ns.max(1) as f64)
                }));
            } else {
                head.push(format!("{} outstanding, M calls/s", cell.window));
                columns.push((cell, |_, run| millions(run.rate)));
            }
        }
        let row = |name: &Name| {
            let value =
                |(cell, format): &(&Cell, Format)| figure(cell, name, |run| format(cell, run));
            [vec![name.title.to_owned()], columns.iter().map(value).collect()].concat()
        };
        markdown(&head, self.peers.iter().map(row))
    }

    /// Sizes as rows.
    fn by_size(&self, windows: &[usize]) -> Vec<String> {
        let table = |window: &usize| {
            let (what, format): (_, fn(&Run) -> String) = match window {
                1 => ("p50, us".to_owned(), |run| micros(run.p50_ns)),
                _ => (format!("window {window}, k calls/s"), |run| three_digits(run.rate / 1e3)),
            };
            let titles = self.peers.iter().map(|name| name.title.to_owned());
            let head = [format!("bytes; {what}"), "line, us".into(), "futex, us".into()];
            let head: Vec<_> = head.into_iter().chain(titles).collect();
            let rows = self.cells.iter().filter(|cell| cell.window == *window).map(|cell| {
                let start = [cell.size.to_string(), micros(cell.line_ns), micros(cell.futex_ns)];
                let figures = self.peers.iter().map(|name| figure(cell, name, format));
                start.into_iter().chain(figures).collect::<Vec<_>>()
            });
            markdown(&head, rows)
        };
        windows.iter().map(table).collect()
    }

    fn after_silence(&self) -> Vec<String> {
        let Some(first) = self.silences.first() else { return Vec::new() };
        let titles = self.silences.iter().map(|silence| {
            format!("after {} ms: p50 (longest), us; x futex", silence.silence_ns as f64 / 1e6)
        });
        let head: Vec<_> =
            [format!("first call, {} B", first.size)].into_iter().chain(titles).collect();
        let row = |name: &Name| {
            let figures = self.silences.iter().map(|silence| {
                let run = silence.runs.iter().find(|run| run.peer == name.peer);
                match run {
                    Some(run) if run.failure.is_none() => {
                        let ratio = run.p50_ns as f64 / silence.futex_p50_ns.max(1) as f64;
                        format!("{} ({}); {ratio:.2}", micros(run.p50_ns), micros(run.max_ns))
                    }
                    _ => "failed".into(),
                }
            });
            [name.title.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
        };
        let futex = self.silences.iter().map(|silence| {
            let Silence { futex_p50_ns, futex_max_ns, .. } = silence;
            format!("{} ({}); 1", micros(*futex_p50_ns), micros(*futex_max_ns))
        });
        let futex = [FUTEX.to_owned()].into_iter().chain(futex).collect();
        vec![markdown(&head, self.peers.iter().map(row).chain([futex]))]
    }

    fn cell(&self, size: usize, window: usize) -> Option<&Cell> {
        self.cells.iter().find(|cell| (cell.size, cell.window) == (size, window))
    }

    fn all_failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        for cell in &self.cells {
            for run in &cell.runs {
                let why = run.failure.iter();
                all.extend(why.map(|why| {
                    format!("{}, {} B, window {}: {why}", run.peer, cell.size, cell.window)
                }));
            }
        }
        for silence in &self.silences {
            for run in &silence.runs {
                all.extend(
                    run.failure.iter().map(|why| format!("{}, after silence: {why}", run.peer)),
                );
            }
        }
        all
    }
}

/// A peer's figure in a cell; nothing if it cannot have so many calls outstanding.
fn figure(cell: &Cell, name: &Name, format: impl Fn(&Run) -> String) -> String {
    match cell.runs.iter().find(|run| run.peer == name.peer) {
        Some(run) if run.failure.is_none() => format(run),
        Some(_) => "failed".into(),
        None => String::new(),
    }
}

fn micros(nanos: u64) -> String {
    three_digits(nanos as f64 / 1e3)
}

fn three_digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn millions(rate: f64) -> String {
    let millions = rate / 1e6;
    if millions < 0.1 { format!("{millions:.3}") } else { format!("{millions:.2}") }
}

/// A table whose columns are aligned in a terminal too.
fn markdown(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = [head.to_vec()].into_iter().chain(rows).collect();
    let width = |column: usize| {
        let widths = rows.iter().filter_map(|row| Some(row.get(column)?.chars().count()));
        widths.max().unwrap_or_default()
    };
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, value) in row.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match column {
                0 => write!(text, "| {value:<0$} |", width(column)),
                _ => write!(text, " {value:>0$} |", width(column)),
            };
        }
        text.push('\n');
        if number == 0 {
            text.push('|');
            for column in 0..head.len() {
                let dashes = "-".repeat(width(column) + 1);
                text.push_str(&if column == 0 {
                    format!("{dashes}-|")
                } else {
                    format!("{dashes}:|")
                });
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::FirstCalls;
    use super::*;

    fn run(peer: &'static str, p50_ns: u64, rate: f64) -> Run {
        Run { peer, rounds: 5, calls: 9, p50_ns, p99_ns: 2 * p50_ns, rate, failure: None }
    }

    #[test]
    fn peers_are_rows_of_the_first_table_and_columns_of_the_next() {
        let broken = Run { failure: Some("gone".into()), ..run("theirs", 0, 0.0) };
        let names = [("ours", "our `call`"), ("theirs", "their call")];
        let report = Report {
            bench: "peers",
            cores: [0, 1],
            shared_cache_level: Some(3),
            peers: names.map(|(peer, title)| Name { peer, title }).to_vec(),
            cells: vec![
                Cell {
                    size: 32,
                    window: 1,
                    line_ns: 100,
                    futex_ns: 9_000,
                    runs: vec![run("ours", 250, 4e6), run("theirs", 51_234, 2e4)],
                },
                Cell { size: 32, window: 64, line_ns: 60, futex_ns: 9_000, runs: vec![broken] },
            ],
            silences: vec![Silence {
                silence_ns: 1_000_000,
                size: 32,
                futex_p50_ns: 40_000,
                futex_max_ns: 50_000,
                runs: vec![FirstCalls {
                    peer: "ours",
                    calls: 5,
                    p50_ns: 90_000,
                    max_ns: 123_456,
                    failure: None,
                }],
            }],
        };
        assert_eq!(report.failures(), 1);
        let expected = "\
Echo calls: servers on core 0, clients on core 1, which share a level-3 cache. There and back, a cache line takes 0.06 to 0.10 us \
between them, and a wake-up by futex 9.00 us.

| 32 B, there and back | p50, us | p99, us | x the line | 64 outstanding, M calls/s |
|----------------------|--------:|--------:|-----------:|--------------------------:|
| our `call`           |    0.25 |    0.50 |        2.5 |                           |
| their call           |    51.2 |     102 |      512.3 |                    failed |

| bytes; p50, us | line, us | futex, us | our `call` | their call |
|----------------|---------:|----------:|-----------:|-----------:|
| 32             |     0.10 |      9.00 |       0.25 |       51.2 |

| bytes; window 64, k calls/s | line, us | futex, us | our `call` | their call |
|-----------------------------|---------:|----------:|-----------:|-----------:|
| 32                          |     0.06 |      9.00 |            |     failed |

| first call, 32 B      | after 1 ms: p50 (longest), us; x futex |
|-----------------------|---------------------------------------:|
| our `call`            |                       90.0 (123); 2.25 |
| their call            |                                 failed |
| futex, there and back |                         40.0 (50.0); 1 |

failed: theirs, 32 B, window 64: gone
";
        assert_eq!(report.table(), expected);
    }
}
