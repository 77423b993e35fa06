//! Traces of simulated racks.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_verbs::sim::Sim;

/// How much of a rack's trace is kept.
#[derive(Clone, Debug, Default)]
pub enum Trace {
    /// Nothing.
    #[default]
    Off,
    /// The last lines.
    Last(usize),
    /// All lines, in a file.
    To(TraceFile),
}

/// A trace file. Clones refer to the same file.
#[derive(Clone, Debug)]
pub struct TraceFile(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    file: BufWriter<File>,
    /// The first error. The rack continues without the file.
    failed: Option<io::Error>,
}

impl Trace {
    pub(crate) fn begin(&self, sim: &mut Sim) {
        match self {
            Trace::Off => {}
            Trace::Last(lines) => sim.record_trace(*lines),
            Trace::To(file) => sim.write_trace(file.clone()),
        }
    }
}

impl TraceFile {
    /// Creates an empty file.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        let file = BufWriter::new(File::create(path)?);
        Ok(TraceFile(Arc::new(Mutex::new(Open { file, failed: None }))))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// If a line could not be written.
    pub fn finish(&self) -> io::Result<()> {
        let mut open = self.lock();
        open.failed.take().map_or_else(|| open.file.flush(), Err)
    }
}

impl Write for TraceFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut open = self.lock();
        let written = open.file.write(bytes);
        if let Err(error) = &written {
            open.failed.get_or_insert(io::Error::from(error.kind()));
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().file.flush()
    }
}
