//! Memory of a GPU, and memory of the host that is pinned for it.
//!
//! A device never writes to memory of the host here: streams read pinned memory and words, and [`Current::read`] has its bytes when
//! it returns. So nothing that is dropped too early can harm more than what is in a GPU.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU32;

use crate::context::{Context, Current};
use crate::error::Error;
use crate::sys::{
    Address, HOST_DEVICEMAP, HOST_PORTABLE, INVALID_VALUE, MEMORY_DEVICE, MEMORY_HOST,
    POINTER_DEVICE_ORDINAL, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE, POINTER_SYNC_MEMOPS,
};

/// A range of a GPU's memory.
#[derive(Debug)]
pub struct DeviceMemory {
    address: Address,
    bytes: u64,
    context: Context,
    owned: bool,
}

impl DeviceMemory {
    /// Takes memory of the GPU.
    ///
    /// # Errors
    /// [`Error::Empty`]; [`Error::Call`] where it has no more.
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, Error> {
        let size = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
        let size = size.ok_or(Error::Empty)?;
        let current = context.enter()?;
        let mut address = 0;
        // SAFETY: the driver writes the address.
        current.check("cuMemAlloc", unsafe {
            (current.functions().cuMemAlloc_v2)(&mut address, size)
        })?;
        Ok(DeviceMemory {
            address,
            bytes,
            context: context.clone(),
            owned: true,
        })
    }

    /// Memory of somebody else's, which is checked to be this GPU's: that of a tensor, say.
    ///
    /// Memory that is managed, so that host and GPU share it, is refused: streams can't be ordered with what NICs write there.
    ///
    /// # Safety
    /// It must stay allocated for as long as the value.
    ///
    /// # Errors
    /// [`Error::NotDeviceMemory`] with what it is, [`Error::Empty`], [`Error::Call`].
    pub unsafe fn foreign(
        context: &Context,
        address: u64,
        bytes: u64,
    ) -> Result<DeviceMemory, Error> {
        if bytes == 0 {
            return Err(Error::Empty);
        }
        let memory = DeviceMemory {
            address,
            bytes,
            context: context.clone(),
            owned: false,
        };
        let current = context.enter()?;
        // The ends are asked for and not the allocation, of which the range may span several.
        let last = address.checked_add(bytes - 1);
        let last = last.ok_or_else(|| memory.is_none("they go beyond all addresses".into()))?;
        memory.check_place(&current, address)?;
        memory.check_place(&current, last)?;
        Ok(memory)
    }

    fn check_place(&self, current: &Current<'_>, place: Address) -> Result<(), Error> {
        let ordinal = self.context.device().ordinal;
        let kind = match attribute::<c_uint>(current, POINTER_MEMORY_TYPE, place) {
            Err(error) if error.code() == Some(INVALID_VALUE) => MEMORY_HOST,
            kind => kind?,
        };
        if attribute::<c_uint>(current, POINTER_IS_MANAGED, place).unwrap_or(0) != 0 {
            let reason = "they are managed memory; allocate with cudaMalloc";
            return Err(self.is_none(reason.into()));
        }
        if kind != MEMORY_DEVICE {
            let reason = match kind {
                MEMORY_HOST => "CUDA does not know them, or as the host's",
                _ => "they are neither linear nor a GPU's alone",
            };
            let reason = format!("{reason}; give the address of a tensor on the GPU");
            return Err(self.is_none(reason));
        }
        let of: c_int = attribute(current, POINTER_DEVICE_ORDINAL, place)?;
        if of != ordinal {
            let reason = format!("they are GPU {of}'s; register them with a client of that GPU");
            return Err(self.is_none(reason));
        }
        Ok(())
    }

    fn is_none(&self, reason: String) -> Error {
        Error::NotDeviceMemory {
            address: self.address,
            bytes: self.bytes,
            ordinal: self.context.device().ordinal,
            reason,
        }
    }

    /// The first byte's address, as the GPU knows it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never: there is at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn place(&self, offset: u64, bytes: u64) -> Address {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at {offset} of {}", self.bytes);
        self.address + offset
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: taken by `new` and freed once. The driver waits for what uses it.
            self.context.at_end("cuMemFree", |current| unsafe {
                (current.functions().cuMemFree_v2)(self.address)
            });
        }
    }
}

/// An attribute of an address; `T` is the attribute's type, an integer of 4 bytes.
fn attribute<T: Default>(
    current: &Current<'_>,
    which: c_int,
    address: Address,
) -> Result<T, Error> {
    const { assert!(size_of::<T>() == 4) };
    let mut value = T::default();
    // SAFETY: the driver writes 4 bytes for each of the attributes that this module asks for.
    current.check("cuPointerGetAttribute", unsafe {
        (current.functions().cuPointerGetAttribute)(
            ptr::from_mut(&mut value).cast(),
            which,
            address,
        )
    })?;
    Ok(value)
}

/// What is done with memory of a GPU at once. All of it waits until it is done.
impl Current<'_> {
    /// Sets bytes.
    ///
    /// # Errors
    /// [`Error::Call`].
    ///
    /// # Panics
    /// If they lie outside.
    pub fn fill(&self, to: &DeviceMemory, offset: u64, bytes: u64, value: u8) -> Result<(), Error> {
        let place = to.place(offset, bytes);
        // SAFETY: the range was checked; it is no memory of the host's.
        self.check("cuMemsetD8", unsafe {
            (self.functions().cuMemsetD8_v2)(place, value, bytes as usize)
        })?;
        // It may return before it is done.
        self.synchronize(&crate::stream::Stream::legacy(self.context))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Call`].
    ///
    /// # Panics
    /// If they lie outside.
    pub fn read(&self, from: &DeviceMemory, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let place = from.place(offset, out.len() as u64);
        // SAFETY: the range was checked; `out` is writable, and all of it is written when the call returns.
        self.check("cuMemcpyDtoH", unsafe {
            (self.functions().cuMemcpyDtoH_v2)(out.as_mut_ptr().cast(), place, out.len())
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::Call`].
    ///
    /// # Panics
    /// If they lie outside.
    pub fn write(&self, to: &DeviceMemory, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = to.place(offset, bytes.len() as u64);
        // SAFETY: the range was checked; `bytes` is readable, and read when the call returns.
        self.check("cuMemcpyHtoD", unsafe {
            (self.functions().cuMemcpyHtoD_v2)(place, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Makes CUDA's blocking copies of this memory wait until they are done, also where they otherwise need not: for memory that a
    /// NIC writes.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub fn synchronize_copies(&self, memory: &DeviceMemory) -> Result<(), Error> {
        let set = self.functions().cuPointerSetAttribute;
        let set = set.ok_or(Error::Missing {
            symbol: "cuPointerSetAttribute",
            what: "copies of what a NIC writes may be late",
        })?;
        let yes: c_uint = 1;
        // SAFETY: the attribute is an unsigned int, and read when the call returns.
        self.check("cuPointerSetAttribute", unsafe {
            set(
                ptr::from_ref(&yes).cast(),
                POINTER_SYNC_MEMOPS,
                memory.address,
            )
        })
    }
}

/// Memory of the host that a GPU can read without the CPU's help, and whoever keeps it mapped.
#[derive(Debug)]
pub struct Pinned<T: Send + 'static> {
    start: NonNull<u8>,
    bytes: u64,
    context: Context,
    /// Dropped after the registration has ended.
    owner: T,
}

// SAFETY: the address is only given to the driver, which all threads may call.
unsafe impl<T: Send + 'static> Send for Pinned<T> {}
// SAFETY: as above; the owner is shared only if it may be.
unsafe impl<T: Send + Sync + 'static> Sync for Pinned<T> {}

impl<T: Send + 'static> Pinned<T> {
    /// Pins `bytes` at `start`, which `owner` keeps mapped. The GPU only reads them.
    ///
    /// # Errors
    /// [`Error::Empty`]; [`Error::Call`] where the memory is not mapped or can't be pinned, or was before.
    pub fn new(
        context: &Context,
        owner: T,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Pinned<T>, Error> {
        if bytes == 0 {
            return Err(Error::Empty);
        }
        let current = context.enter()?;
        // SAFETY: the driver pins what is mapped there, and refuses what is not. It and the device don't write to it.
        current.check("cuMemHostRegister", unsafe {
            (current.functions().cuMemHostRegister_v2)(start.as_ptr().cast(), bytes, HOST_PORTABLE)
        })?;
        Ok(Pinned {
            start,
            bytes: bytes as u64,
            context: context.clone(),
            owner,
        })
    }

    /// Who keeps it mapped.
    pub fn owner(&self) -> &T {
        &self.owner
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never: there is at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn place(&self, offset: u64, bytes: u64) -> *const u8 {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at {offset} of {}", self.bytes);
        self.start.as_ptr().wrapping_add(offset as usize)
    }
}

impl<T: Send + 'static> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: pinned by `new` and given up once.
        self.context
            .at_end("cuMemHostUnregister", |current| unsafe {
                (current.functions().cuMemHostUnregister)(self.start.as_ptr().cast())
            });
    }
}

/// Words in pinned memory, which the CPU sets and streams wait for. All are 0 at first.
///
/// Whoever drops them has set all that streams wait for, or their work never ends.
#[derive(Debug)]
pub struct Words {
    start: NonNull<AtomicU32>,
    words: usize,
    /// The first one's address, as the GPU knows it.
    address: Address,
    context: Context,
}

// SAFETY: the words are atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Takes `words` words.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Call`].
    pub fn new(context: &Context, words: usize) -> Result<Words, Error> {
        let bytes = words
            .checked_mul(size_of::<u32>())
            .filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or(Error::Empty)?;
        let current = context.enter()?;
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: the driver writes the address of as many bytes, aligned to pages.
        current.check("cuMemHostAlloc", unsafe {
            let flags = HOST_PORTABLE | HOST_DEVICEMAP;
            (current.functions().cuMemHostAlloc)(&mut start, bytes, flags)
        })?;
        let start =
            NonNull::new(start.cast::<AtomicU32>()).expect("what was allocated is somewhere");
        // SAFETY: `bytes` are allocated and nobody else knows them.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        let mut made = Words {
            start,
            words,
            address: 0,
            context: context.clone(),
        };
        // SAFETY: the driver writes an address; the memory was allocated as mapped.
        current.check("cuMemHostGetDevicePointer", unsafe {
            let get = current.functions().cuMemHostGetDevicePointer_v2;
            get(&mut made.address, start.as_ptr().cast(), 0)
        })?;
        Ok(made)
    }

    /// A word.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn word(&self, word: usize) -> &AtomicU32 {
        assert!(word < self.words, "word {word} of {}", self.words);
        // SAFETY: inside, aligned, zeroed when it was made, and freed when `self` is dropped. The device only reads it.
        unsafe { self.start.add(word).as_ref() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn device_address(&self, word: usize) -> Address {
        assert!(word < self.words, "word {word} of {}", self.words);
        self.address + (word * size_of::<u32>()) as u64
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` and freed once. The driver waits for what reads it.
        self.context.at_end("cuMemFreeHost", |current| unsafe {
            (current.functions().cuMemFreeHost)(self.start.as_ptr().cast())
        });
    }
}
