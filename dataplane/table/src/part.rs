//! Parts of arenas that tables lie in.

use std::ops::{Deref, Range};
use std::sync::Arc;

use rowmill_arena::{Backing, FrozenArena, LiveArena, ReadWindow};

use crate::TableError;
use crate::manifest::TableInfo;
use crate::overlay::{Overlay, Room};
use crate::verify::check_zero_row;

/// Memory of tables, alive as long as somebody has it.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// Nobody writes it.
    Frozen(Arc<FrozenArena>),
    /// Some of its ranges are written.
    Live(Arc<LiveArena>),
}

impl Bytes {
    pub(crate) fn backing(&self) -> &Backing {
        match self {
            Bytes::Frozen(arena) => arena.backing(),
            Bytes::Live(arena) => arena.backing(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Frozen(arena) => arena.len(),
            Bytes::Live(arena) => arena.len(),
        }
    }
}

/// Bytes of an arena, which they keep alive.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) arena: Bytes,
    pub(crate) range: Range<usize>,
}

impl Part {
    /// The bytes, which others may write.
    pub(crate) fn window(&self) -> ReadWindow<'_> {
        match &self.arena {
            Bytes::Frozen(arena) => ReadWindow::over(&arena[self.range.clone()]),
            Bytes::Live(arena) => arena.to_read(self.range.clone()),
        }
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.arena {
            Bytes::Frozen(arena) => &arena[self.range.clone()],
            Bytes::Live(arena) => arena.bytes(self.range.clone()),
        }
    }
}

/// Checks rows, and makes what they need to change if there is room for that.
pub(crate) fn overlay(
    info: &TableInfo,
    rows: Option<&Part>,
    room: Option<Room>,
) -> Result<Option<Arc<Overlay>>, TableError> {
    let Some(rows) = rows else {
        return Ok(None);
    };
    let (window, mut last) = (rows.window(), vec![0; info.stride]);
    window.read(window.len() - info.stride, &mut last);
    check_zero_row(info, &last)?;
    Ok(match (&rows.arena, room) {
        (Bytes::Live(arena), Some(room)) => {
            let overlay = Overlay::new(arena, rows.range.clone(), info.stride, room);
            Some(Arc::new(overlay))
        }
        _ => None,
    })
}
