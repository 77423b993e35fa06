//! The owner's side of persistent memory.

use std::sync::Arc;

use super::context::{Context, Domain};
use super::media::Span;
use super::world::World;
use crate::memory::region::Region;
use crate::{Access, VerbsError};

/// One opening of a persistent region.
#[derive(Debug)]
pub(crate) struct Persistent {
    context: Arc<Context>,
    region: u32,
}

impl Persistent {
    pub(crate) fn open(
        domain: &Domain,
        name: &str,
        len: usize,
        access: Access,
    ) -> Result<(Region, Persistent), VerbsError> {
        let Domain { context, number: pd } = domain;
        let mut world = context.running()?;
        let World { nodes, dice, .. } = &mut *world;
        let node = &mut nodes[usize::from(context.node)];
        let (number, pages) = node.media.open(name, len)?;
        let region =
            node.regions.register(context, *pd, pages, Some(number), access, || dice.word());
        drop(world);
        Ok((region, Persistent { context: Arc::clone(context), region: number }))
    }

    fn span(&self, start: usize, len: usize) -> Span {
        Span { region: self.region, start: start as u64, len: len as u64 }
    }

    /// Records a store of the owner. Stores to the memory of a killed node are lost.
    pub(crate) fn record_store(&self, start: usize, len: usize) {
        let Ok(mut world) = self.context.running() else { return };
        let World { nodes, dice, config, .. } = &mut *world;
        let media = &mut nodes[usize::from(self.context.node)].media;
        media.record_store(self.span(start, len), &config.durability, dice);
    }

    pub(crate) fn persist(&self, start: usize, len: usize) -> Result<(), VerbsError> {
        let mut world = self.context.running()?;
        let World { nodes, dice, config, .. } = &mut *world;
        let media = &mut nodes[usize::from(self.context.node)].media;
        let lines = media.persist(self.span(start, len), &config.durability, dice);
        let cost_ns = lines * config.durability.write_back_ns + config.durability.fence_ns;
        world.charge(cost_ns);
        Ok(())
    }
}
