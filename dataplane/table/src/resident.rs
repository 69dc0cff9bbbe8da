//! Tables in memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rowmill_arena::{Backing, FrozenBytes, HugePages, ReadWindow};

use crate::blocks::{BLOCK_BYTES, Meter, in_parallel};
use crate::format::RowFormat;
use crate::generate::Generated;
use crate::index::{BUCKET_BYTES, Index, entries};
use crate::index_build::Scratch;
use crate::layout::Layout;
use crate::manifest::TableInfo;
use crate::overlay::{Overlay, Room};
use crate::part::{Bytes, Part, overlay};
use crate::spec::{Missing, TableKind, TableSpec, check_specs};
use crate::verify::check_index;
use crate::writer::TableRows;
use crate::{Progress, Stage, TableError};

/// All tables of a generation, in arenas: one for all of them, and one for the rows of each table that were asked
/// for apart. Of some there may be the index alone (see [`Keep`](crate::Keep)). Nothing is written there any more but the rows of tables
/// that were asked for so that they can change.
#[derive(Debug)]
pub struct Resident {
    pub(crate) generation: u64,
    /// See [`fingerprint`](Self::fingerprint).
    pub(crate) fingerprint: u32,
    /// The sequence number of the last delta of which all rows are served.
    pub(crate) delta: AtomicU64,
    pub(crate) tables: Vec<ResidentTable>,
    /// Of the largest arena, and the bytes of all.
    pub(crate) backing: Backing,
    pub(crate) arena_bytes: usize,
}

impl Resident {
    /// Tables of generated values, the same as [`generate`](crate::generate()) writes to files, without
    /// files. They are generation 0.
    ///
    /// # Errors
    /// As [`check_specs`], and [`TableError::Memory`].
    pub fn in_memory(
        specs: &[TableSpec],
        seed: u64,
        huge_pages: HugePages,
        progress: Progress<'_>,
    ) -> Result<Resident, TableError> {
        Resident::in_memory_changing(|_| false, specs, seed, huge_pages, progress)
    }

    /// The same; rows of the tables of which `changing` says so, by their numbers, can [change](ResidentTable::change).
    ///
    /// # Errors
    /// As [`in_memory`](Self::in_memory).
    pub fn in_memory_changing(
        changing: impl Fn(usize) -> bool,
        specs: &[TableSpec],
        seed: u64,
        huge_pages: HugePages,
        progress: Progress<'_>,
    ) -> Result<Resident, TableError> {
        check_specs(specs)?;
        let tables: Vec<TableInfo> = specs
            .iter()
            .map(|spec| TableInfo::new(spec, String::new()))
            .collect();
        let room = |(index, info): (usize, &TableInfo)| {
            let room = || Room::behind(info, info.resident_bytes());
            changing(index).then(room).flatten()
        };
        let rooms: Vec<Option<Room>> = tables.iter().enumerate().map(room).collect();
        let taken = |(info, room): (&TableInfo, &Option<Room>)| {
            room.map_or(info.resident_bytes(), |room| room.end(info.stride))
        };
        let layout = Layout::new(tables.iter().zip(&rooms).map(taken));
        let mut arena = layout.allocate(huge_pages, progress)?;
        let source = Generated::new(specs, seed);
        let rows_of = |table| TableRows {
            source: &source,
            table,
            info: &tables[table],
        };
        let total = tables.iter().map(TableInfo::resident_bytes).sum();
        let meter = Meter::new(progress, Stage::Filling, total);
        let mut jobs = Vec::new();
        for (index, body) in layout.split(arena.as_mut_slice()).into_iter().enumerate() {
            let info = &tables[index];
            let (body, _overlay) = body.split_at_mut(info.resident_bytes() as usize);
            let (rows, rest) = body.split_at_mut(info.row_region_bytes() as usize);
            let (gap, index_bytes) = rest.split_at_mut(rest.len() - info.index_bytes() as usize);
            gap.fill(0);
            if !index_bytes.is_empty() {
                let mut scratch = Scratch::Memory(Vec::new());
                rows_of(index).index(seed, &mut scratch, &mut |at, bytes| {
                    index_bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
                    Ok(())
                })?;
            }
            meter.add((gap.len() + index_bytes.len()) as u64);
            let parts = rows.chunks_mut(BLOCK_BYTES).enumerate();
            jobs.extend(parts.map(|(part, bytes)| (index, (part * BLOCK_BYTES) as u64, bytes)));
        }
        in_parallel(jobs.into_iter(), Vec::new, |row, (index, from, bytes)| {
            rows_of(index).fill(from, bytes, row)?;
            meter.add(bytes.len() as u64);
            Ok(())
        })?;
        let places = tables.iter().zip(&rooms).zip(layout.ranges());
        let open = places.clone().filter_map(|((info, room), range)| {
            let room = (*room)?;
            Some(room.open(info, range.start))
        });
        let open: Vec<Range<usize>> = open.flatten().collect();
        let arena = match open.is_empty() {
            true => Bytes::Frozen(Arc::new(arena.freeze()?)),
            false => Bytes::Live(Arc::new(arena.open(open))),
        };
        let table = |((info, room), range): ((&TableInfo, &Option<Room>), Range<usize>)| {
            let part = |from: u64, to: u64| Part {
                arena: arena.clone(),
                range: range.start + from as usize..range.start + to as usize,
            };
            let rows = part(0, info.row_region_bytes());
            let index = part(info.index_at(), info.resident_bytes());
            ResidentTable::new(info, Some(rows), *room, index)
        };
        let made: Result<Vec<ResidentTable>, TableError> = places.map(table).collect();
        Ok(Resident {
            generation: 0,
            fingerprint: 0,
            delta: AtomicU64::new(0),
            tables: made?,
            arena_bytes: arena.len(),
            backing: *arena.backing(),
        })
    }

    /// The same tables as another generation.
    pub fn with_generation(self, generation: u64) -> Resident {
        Resident { generation, ..self }
    }

    /// The generation's number; 0 for generated tables that have no files.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The generation's [fingerprint](crate::Generation::fingerprint); 0 for generated tables that have no files.
    pub fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    /// The sequence number of the last delta whose rows are all served; 0 before the first. Whoever has seen it sees them.
    pub fn delta(&self) -> u64 {
        self.delta.load(Ordering::Acquire)
    }

    /// Says that all rows of this delta and of those before it are served: whoever looks rows up from now on finds them.
    pub fn set_delta(&self, sequence: u64) {
        self.delta.store(sequence, Ordering::Release);
    }

    /// The tables; their order is their index.
    pub fn tables(&self) -> &[ResidentTable] {
        &self.tables
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<&ResidentTable> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Takes a table with its rows, which are [apart](crate::Keep::RowsApart), and leaves it without them: their memory is given back
    /// with what this returns.
    ///
    /// # Panics
    /// If the table has no rows.
    pub fn take_rows(&mut self, table: usize) -> ResidentTable {
        let without = self.tables[table].without_rows();
        let taken = core::mem::replace(&mut self.tables[table], without);
        self.arena_bytes -= taken.rows().arena.len();
        taken
    }

    /// What the memory is made of; that of the largest arena that was brought in where there are several.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Bytes of the arenas: all rows and indexes that are there, and the padding between tables.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }
}

/// One table in memory: its index, if it is hashed, and its rows, unless they are left where they are. Cheap to clone; keeps
/// its arenas alive.
#[derive(Clone, Debug)]
pub struct ResidentTable {
    name: String,
    dim: usize,
    /// Rows that ids lead to.
    ids: u32,
    /// Those, and the one for missing ids where there is one.
    rows: u32,
    format: RowFormat,
    kind: TableKind,
    stride: usize,
    rows_at: Option<Part>,
    /// How its rows become others, where they can.
    overlay: Option<Arc<Overlay>>,
    /// What a hashed table is looked up with.
    index: Option<(Index, Part)>,
}

impl ResidentTable {
    /// The table of `rows` and `index` (empty for a dense table), which are checked. With `room` its rows can change.
    pub(crate) fn new(
        info: &TableInfo,
        rows: Option<Part>,
        room: Option<Room>,
        index: Part,
    ) -> Result<ResidentTable, TableError> {
        let overlay = overlay(info, rows.as_ref(), room)?;
        let row = |count| u32::try_from(count).expect("checked: below 2^31");
        Ok(ResidentTable {
            name: info.name.clone(),
            dim: info.dim,
            ids: row(info.rows),
            rows: row(info.stored_rows()),
            format: info.format,
            kind: info.kind,
            stride: info.stride,
            index: match info.kind {
                TableKind::Dense => None,
                TableKind::Hashed(_) => Some((check_index(info, &index)?, index)),
            },
            rows_at: rows,
            overlay,
        })
    }

    /// The same table with rows that are elsewhere, which are checked. With `room` they can change.
    pub(crate) fn with_rows(
        &self,
        info: &TableInfo,
        rows: Part,
        room: Option<Room>,
    ) -> Result<ResidentTable, TableError> {
        Ok(ResidentTable {
            overlay: overlay(info, Some(&rows), room)?,
            rows_at: Some(rows),
            ..self.clone()
        })
    }

    /// The same table without its rows, which it does not keep alive.
    pub fn without_rows(&self) -> ResidentTable {
        ResidentTable {
            rows_at: None,
            overlay: None,
            ..self.clone()
        }
    }

    /// What the memory of its rows is made of.
    pub fn backing(&self) -> &Backing {
        self.rows().arena.backing()
    }

    fn rows(&self) -> &Part {
        self.rows_at.as_ref().expect("a table with its rows")
    }

    /// Whether its rows are in memory.
    pub fn has_rows(&self) -> bool {
        self.rows_at.is_some()
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Stored rows, below 2^31; row numbers are smaller. Those of ids come first, and behind them lies the
    /// one for missing ids where these are answered.
    pub fn row_count(&self) -> u32 {
        self.rows
    }

    /// Ids that there are: those of a dense table are smaller, a hashed one has as many keys.
    pub fn lookup_count(&self) -> u32 {
        self.ids
    }

    /// How ids lead to rows.
    pub fn kind(&self) -> TableKind {
        self.kind
    }

    /// How a row is stored.
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Bytes from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All stored rows, one after another.
    ///
    /// # Panics
    /// If they are not in memory, or can change.
    pub fn bytes(&self) -> &[u8] {
        self.rows()
    }

    /// Whether its rows can become others while they are read.
    pub fn can_change(&self) -> bool {
        self.overlay.is_some()
    }

    /// All that can be read as a row, one after another: the stored rows, and what may stand in for some of them.
    ///
    /// # Panics
    /// If they are not in memory.
    #[inline]
    pub fn window(&self) -> ReadWindow<'_> {
        match &self.overlay {
            Some(overlay) => overlay.window(),
            None => self.rows().window(),
        }
    }

    /// One more than the highest number of a row in [`window`](Self::window).
    #[inline]
    pub fn numbers(&self) -> u32 {
        (self.overlay.as_ref()).map_or(self.rows, |overlay| overlay.numbers())
    }

    /// A reader's, before it reads rows: puts others in the place of those that have one right now. What it reads by these numbers stays as it is
    /// until the reader [passes](Self::change) a point at which it has nothing in hand.
    #[inline]
    pub fn stand_in(&self, rows: &mut [u32]) {
        if let Some(overlay) = &self.overlay {
            overlay.stand_in(rows);
        }
    }

    /// Rows become others, of these bytes, while they are read; each is named once. `pass` returns when every reader has passed a point at which it had
    /// nothing in hand, since it was called. When this returns all readers find the new rows.
    ///
    /// # Panics
    /// If they can't change, there are other rows than stored ones among them, or not as many bytes as they have.
    pub fn change(&self, rows: &[u32], bytes: &[u8], pass: &mut dyn FnMut()) {
        let overlay = self.overlay.as_ref().expect("a table that can change");
        let inside = |&row: &u32| row < self.rows;
        assert!(rows.iter().all(inside), "stored rows");
        overlay.change(rows, bytes, pass);
    }

    /// [`bytes`](Self::bytes), kept alive by what is returned; `None` if they are not in memory, or can change.
    pub fn frozen(&self) -> Option<FrozenBytes> {
        let Part { arena, range } = self.rows_at.as_ref()?;
        match arena {
            Bytes::Frozen(arena) => Some(FrozenBytes::new(Arc::clone(arena), range.clone())),
            Bytes::Live(_) => None,
        }
    }

    /// Writes the row number of each of `ids` to the same place of `out`; an id that is missing gets the
    /// row for such ids. Allocates nothing; the work for an id is bounded.
    ///
    /// # Errors
    /// The position of the first id that leads to no row: outside a dense table, or missing in one that
    /// refuses such ids. What is in `out` then means nothing.
    ///
    /// # Panics
    /// If `ids` and `out` have different lengths.
    pub fn resolve(&self, ids: &[u64], out: &mut [u32]) -> Result<(), usize> {
        let Some((index, bytes)) = &self.index else {
            assert_eq!(ids.len(), out.len(), "a row for each id");
            let mut outside = false;
            for (row, &id) in out.iter_mut().zip(ids) {
                outside |= id >= u64::from(self.ids);
                *row = id as u32;
            }
            if !outside {
                return Ok(());
            }
            return match ids.iter().position(|&id| id >= u64::from(self.ids)) {
                Some(position) => Err(position),
                None => Ok(()),
            };
        };
        let missing = (self.kind.missing() != Missing::Error).then_some(self.ids);
        index.resolve(bytes, ids, out, missing)
    }

    /// The keys of a hashed table with the rows that they lead to, in the order of the index; nothing for a
    /// dense table.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        let bytes: &[u8] = self.index.as_ref().map_or(&[], |(_, bytes)| bytes);
        let (lines, _) = bytes.as_chunks::<BUCKET_BYTES>();
        lines.iter().skip(1).flat_map(entries)
    }

    /// Decodes one row. Of one that changes meanwhile the values are any.
    ///
    /// # Errors
    /// [`TableError::NoSuchRow`].
    ///
    /// # Panics
    /// If `out` does not have `dim()` places, or the rows are not in memory.
    pub fn row_f32(&self, row: u32, out: &mut [f32]) -> Result<(), TableError> {
        assert_eq!(out.len(), self.dim, "one place a dimension");
        if row >= self.rows {
            return Err(TableError::NoSuchRow {
                table: self.name.clone(),
                row: row.into(),
                rows: self.rows.into(),
            });
        }
        let (mut number, mut bytes) = ([row], vec![0; self.stride]);
        self.stand_in(&mut number);
        let at = number[0] as usize * self.stride;
        self.window().read(at, &mut bytes);
        self.format.decode(&bytes, out);
        Ok(())
    }
}
