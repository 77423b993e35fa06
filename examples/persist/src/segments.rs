//! The files of a log's segments.

use std::sync::Arc;

use crate::error::Error;
use crate::planted::{Bug, is_planted};
use crate::segment::{self, HEADER_BLOCK_BYTES, SegmentHeader};
use crate::storage::{Access, File, Storage};

/// The numbers of all segments that are there, in order, and the names of spare files.
pub(crate) fn list(storage: &dyn Storage) -> Result<(Vec<u64>, Vec<String>), Error> {
    let names = storage.list().map_err(|why| Error::io("list", &storage.describe(), why))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment::number_in(name)).collect();
    numbers.sort_unstable();
    let spares = names.into_iter().filter(|name| segment::is_spare(name)).collect();
    Ok((numbers, spares))
}

/// Opens a segment that is there.
///
/// # Errors
///
/// [`Error::NotASegment`] and [`Error::Version`] if it is damaged or another's; [`Error::Io`].
pub(crate) fn open(
    storage: &dyn Storage,
    number: u64,
    access: Access,
) -> Result<(Arc<dyn File>, SegmentHeader), Error> {
    let name = segment::name(number);
    let file = storage.open(&name, access).map_err(|why| Error::io("open", &name, why))?;
    let mut block = [0; HEADER_BLOCK_BYTES as usize];
    let count = file.read_at(&mut block, 0).map_err(|why| Error::io("read", &name, why))?;
    let header = SegmentHeader::parse(&name, &block[..count])?;
    if header.number != number {
        let why = "its header has the number of another segment; it is a copy, or was renamed";
        return Err(Error::NotASegment { file: name, why });
    }
    Ok((file, header))
}

/// Makes a segment, of a spare file if there is one. When it has its name, its header is durable; when this returns, so is the name.
pub(crate) fn create(
    storage: &dyn Storage,
    header: SegmentHeader,
    spares: &mut Vec<String>,
) -> Result<Arc<dyn File>, Error> {
    let spare = spares.pop().unwrap_or_else(|| segment::spare_name(header.number));
    let file = prepare(storage, header, &spare).inspect_err(|_| spares.push(spare.clone()))?;
    let name = segment::name(header.number);
    storage.rename(&spare, &name).map_err(|why| Error::io("rename", &spare, why))?;
    sync_names(storage)?;
    Ok(file)
}

fn prepare(
    storage: &dyn Storage,
    header: SegmentHeader,
    spare: &str,
) -> Result<Arc<dyn File>, Error> {
    let failed = |doing| move |why| Error::io(doing, spare, why);
    let file = storage.open(spare, Access::Create).map_err(failed("create"))?;
    file.preallocate(header.segment_bytes).map_err(failed("make room for"))?;
    file.write_at(&header.encode(), 0).map_err(failed("write"))?;
    file.sync().map_err(failed("sync"))?;
    Ok(file)
}

/// Makes the changes of names durable.
pub(crate) fn sync_names(storage: &dyn Storage) -> Result<(), Error> {
    if is_planted(Bug::NamesNotSynced) {
        return Ok(());
    }
    storage.sync_names().map_err(|why| Error::io("sync the names of", &storage.describe(), why))
}

/// Takes a segment away: its file becomes a spare one, or is removed if there are enough.
pub(crate) fn retire(
    storage: &dyn Storage,
    number: u64,
    spares: &mut Vec<String>,
    max_spares: usize,
) -> Result<(), Error> {
    let name = segment::name(number);
    if spares.len() >= max_spares {
        return storage.remove(&name).map_err(|why| Error::io("remove", &name, why));
    }
    let spare = segment::spare_name(number);
    storage.rename(&name, &spare).map_err(|why| Error::io("rename", &name, why))?;
    if !spares.contains(&spare) {
        spares.push(spare);
    }
    Ok(())
}
