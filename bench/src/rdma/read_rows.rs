//! The other way to do it: rows fetched by RDMA READ and pooled at the client.
//!
//! It is done as well as it can be with the same means: lists of READs with one doorbell, as many READs in
//! flight as the devices agree to, each 64th signalled, several blocks so that one is pooled while others are
//! filled, and our own kernels. Each lookup is a READ of its own: rows are not kept from one lookup to the next.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rowmill_arena::Window;
use rowmill_client::Schema;
use rowmill_pooling::{Bags, Kernels, Mode, Output, Rows};
use rowmill_table::{Resident, ResidentTable};
use rowmill_verbs::{
    Access, Block, Capacity, HostMemory, Operation, Pages, Piece, Registered, Remote, Signal,
};

use super::link::{Device, Link, Offer, Shape};
use crate::workload::Query;

/// Rows of a block: 512 KiB of the largest there are here, which a second-level cache holds.
const BLOCK_ROWS: usize = 1024;
/// Blocks: one is pooled, the others are being filled.
const BLOCKS: usize = 4;
/// READs that can be posted: more than devices have in flight.
const SENDS: u32 = 512;

/// Where each table's rows begin when all lie one after the other, and how many bytes that are.
fn places(tables: &[ResidentTable]) -> (Vec<u64>, usize) {
    let mut end = 0;
    let places = tables.iter().map(|table| {
        let at = end;
        end += (table.bytes().len() as u64).next_multiple_of(64);
        at
    });
    let places = places.collect();
    (places, end as usize)
}

/// All rows, registered for peers to READ.
///
/// # Errors
/// Where there is not enough memory, or not enough may be locked.
pub(super) fn share(device: &Device, tables: &Resident) -> Result<Registered<HostMemory>> {
    let (places, bytes) = places(tables.tables());
    let mut memory = HostMemory::new(bytes, Pages::HugeOrSmall)?;
    for (table, at) in tables.tables().iter().zip(places) {
        memory.as_mut_slice()[at as usize..][..table.bytes().len()].copy_from_slice(table.bytes());
    }
    Registered::new(&device.domain, memory, Access::REMOTE_READ).map_err(|(error, _)| error.into())
}

/// Lets one peer READ the rows until it ends the connection; this side does nothing.
///
/// # Errors
/// A failed call.
pub(super) fn serve(device: &Device, offer: Offer, rows: &Registered<HostMemory>) -> Result<()> {
    offer
        .accept(device, shape(64), rows.remote())?
        .wait_for_end()
}

fn shape(row_bytes: usize) -> Shape {
    Shape {
        capacity: Capacity {
            sends: SENDS,
            receives: 1,
            pieces: 1,
            inline_bytes: 0,
        },
        blocks: BLOCKS,
        block_bytes: BLOCK_ROWS * row_bytes,
    }
}

/// Bags of one feature whose rows go to one block.
#[derive(Clone)]
struct Chunk {
    feature: usize,
    bags: Range<usize>,
    ids: Range<usize>,
}

/// The client that fetches and pools.
pub(super) struct Reader {
    link: Link,
    tables: Arc<Resident>,
    places: Vec<u64>,
    kernels: Kernels,
    /// 0, 1, 2 and so on: the rows of a block are pooled in the order in which they lie there.
    in_order: Vec<u32>,
    chunks: Vec<Chunk>,
}

impl Reader {
    /// Connects to who shares the rows of the same tables.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn connect(
        device: &Device,
        to: SocketAddr,
        tables: Arc<Resident>,
        kernels: Kernels,
    ) -> Result<Reader> {
        let strides = tables.tables().iter().map(ResidentTable::stride);
        let row_bytes = strides.max().context("a model has tables")?;
        let nothing = Remote { address: 0, key: 0 };
        let link = Link::connect(device, to, shape(row_bytes), nothing)?;
        let reads = link.reads_in_flight()?;
        eprintln!("rdma: rows are fetched with {reads} READs in flight");
        let (places, _) = places(tables.tables());
        Ok(Reader {
            link,
            tables,
            places,
            kernels,
            in_order: (0..BLOCK_ROWS as u32).collect(),
            chunks: Vec::new(),
        })
    }

    /// Fetches the rows of a query and pools them into `out`, in the schema's layout.
    ///
    /// # Errors
    /// A READ that failed.
    pub(super) fn pool(&mut self, schema: &Schema, query: &Query, out: &mut [u8]) -> Result<()> {
        self.chunks.clear();
        for (feature, (hot, _)) in query.features.iter().enumerate() {
            let hot = *hot as usize;
            ensure!(hot <= BLOCK_ROWS, "a bag of {hot} rows fits no block");
            let (bags, most) = (query.bags as usize, BLOCK_ROWS / hot);
            self.chunks.extend((0..bags).step_by(most).map(|first| {
                let bags = first..bags.min(first + most);
                let ids = bags.start * hot..bags.end * hot;
                Chunk { feature, bags, ids }
            }));
        }
        for number in 0..self.chunks.len() {
            let block = loop {
                match self.link.slab.take() {
                    Some(block) => break block,
                    None => self.take_in(schema, query, out)?,
                }
            };
            self.fetch(number, block, schema, query, out)?;
        }
        while self.link.slab.free() < BLOCKS {
            self.take_in(schema, query, out)?;
        }
        Ok(())
    }

    /// Posts the READs of a chunk into a block.
    fn fetch(
        &mut self,
        number: usize,
        block: Block,
        schema: &Schema,
        query: &Query,
        out: &mut [u8],
    ) -> Result<()> {
        let Chunk { feature, ids, .. } = self.chunks[number].clone();
        let table = &self.tables.tables()[feature];
        let (stride, base) = (
            table.stride(),
            self.link.peer.address + self.places[feature],
        );
        let key = self.link.peer.key;
        let ids = &query.features[feature].1[ids];
        let mut batch = self.link.qp.batch();
        batch.open(block, self.link.key, number as u32);
        let mut posted = 0;
        while posted < ids.len() {
            while batch.room() > 0 && posted < ids.len() {
                let from = Remote {
                    address: base + u64::from(ids[posted]) * stride as u64,
                    key,
                };
                let piece = Piece {
                    offset: posted * stride,
                    len: stride,
                };
                let last = posted + 1 == ids.len();
                let signal = if last { Signal::Yes } else { Signal::No };
                let added = batch.post_open(Operation::Read(from), &[piece], signal);
                ensure!(added.is_ok(), "there was room");
                posted += 1;
            }
            if posted == ids.len() {
                let early = batch.close();
                ensure!(early.is_none(), "its last READ is not even posted");
                batch.ring()?;
                break;
            }
            if batch.ring()? == 0 {
                self.take_in(schema, query, out)?;
            }
            batch = self.link.qp.batch();
        }
        Ok(())
    }

    /// Takes what has completed, and pools the blocks that are full.
    fn take_in(&mut self, schema: &Schema, query: &Query, out: &mut [u8]) -> Result<()> {
        let (chunks, tables, kernels) = (&self.chunks, &self.tables, &self.kernels);
        let in_order = &self.in_order;
        self.link.poll(|block, number| {
            let Chunk { feature, bags, ids } = chunks[number as usize].clone();
            let table = &tables.tables()[feature];
            let count = ids.len();
            let (stride, dim) = (table.stride(), table.dim());
            let format = rowmill_engine::rows(table).format();
            let rows = Rows::new(block.as_slice(), stride, count as u32, dim, format);
            let place = &schema.features[feature];
            let batch = Bags {
                rows: rows.expect("a block holds the rows of a chunk"),
                ids: &in_order[..count],
                lengths: &query.lengths(feature)[bags.clone()],
                weights: None,
                mode: Mode::Sum,
                output: Output::F32,
                offset: place.offset as usize + bags.start * place.stride as usize,
                stride: place.stride as usize,
            };
            kernels.pool(&[batch], &Window::over(out));
        })?;
        Ok(())
    }
}
