//! The driver's library, opened at run time, and its devices.

use core::ffi::{c_char, c_int};
use core::fmt;
use core::mem::ManuallyDrop;
use std::ffi::{CStr, OsStr};
use std::sync::Mutex;

use libloading::Library;

use crate::error::{Error, check};
use crate::sys::{Functions, RawDevice};

/// The driver's library on Linux.
pub const LIBRARY: &str = "libcuda.so.1";

/// The CUDA driver. It is never closed, since CUDA is not made for that.
pub struct Driver {
    pub(crate) functions: Functions,
    library: String,
    missing: Vec<&'static str>,
}

/// What was opened.
static OPEN: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

impl Driver {
    /// Opens the library of this name or path, mostly [`LIBRARY`], and initialises CUDA. The second time, it is the same driver.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Symbols`]; [`Error::Call`] where there is no GPU, or CUDA can't be used.
    pub fn open(library: &OsStr) -> Result<&'static Driver, Error> {
        let name = library.to_string_lossy().into_owned();
        let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(driver) = open.iter().find(|driver| driver.library == name) {
            return Ok(driver);
        }
        let driver = Driver::load(library, name, &[])?;
        let driver: &'static Driver = Box::leak(Box::new(driver));
        open.push(driver);
        Ok(driver)
    }

    fn load(library: &OsStr, name: String, hidden: &[&str]) -> Result<Driver, Error> {
        // SAFETY: the caller names a CUDA driver, whose initialisers may run at any time; it stays loaded.
        let opened = unsafe { Library::new(library) };
        let opened = opened.map_err(|source| {
            let library = name.clone();
            Error::Library { library, source }
        })?;
        let opened = ManuallyDrop::new(opened);
        let (functions, missing) = Functions::load(&opened, hidden).map_err(|missing| {
            let library = name.clone();
            Error::Symbols { library, missing }
        })?;
        // SAFETY: the one call that comes before all others; its argument has to be 0.
        let code = unsafe { (functions.cuInit)(0) };
        check(&functions, "cuInit", code)?;
        Ok(Driver {
            functions,
            library: name,
            missing,
        })
    }

    /// The library's name or path, as it was given.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Functions that the library lacks, without which some of this crate can't be used.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// The latest version of CUDA that the driver knows: 13000 is 13.0.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        // SAFETY: the driver writes an int.
        self.check("cuDriverGetVersion", unsafe {
            (self.functions.cuDriverGetVersion)(&mut version)
        })?;
        Ok(version)
    }

    /// A GPU by its number, from 0 on.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Call`].
    pub fn device(&'static self, ordinal: i32) -> Result<Device, Error> {
        let mut count = 0;
        // SAFETY: the driver writes an int.
        self.check("cuDeviceGetCount", unsafe {
            (self.functions.cuDeviceGetCount)(&mut count)
        })?;
        if !(0..count).contains(&ordinal) {
            return Err(Error::NoDevice { ordinal, count });
        }
        let mut raw = 0;
        // SAFETY: the driver writes a device's number.
        self.check("cuDeviceGet", unsafe {
            (self.functions.cuDeviceGet)(&mut raw, ordinal)
        })?;
        Ok(Device {
            driver: self,
            raw,
            ordinal,
        })
    }

    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        check(&self.functions, call, code)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.library)
    }
}

/// What can be asked of a device, by its number in `CUdevice_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute(pub i32);

impl Attribute {
    /// Compute capability, the number before the dot.
    pub const COMPUTE_CAPABILITY_MAJOR: Attribute = Attribute(75);
    /// Whether waiting streams of this driver's first interface were enabled; the second needs no leave.
    pub const STREAM_MEM_OPS_V1: Attribute = Attribute(92);
    /// Whether a stream that waits for a word can flush what other devices wrote.
    pub const CAN_FLUSH_REMOTE_WRITES: Attribute = Attribute(98);
    /// Whether host memory can be pinned.
    pub const HOST_REGISTER: Attribute = Attribute(99);
    /// Whether memory of `cuMemCreate` can be registered with a NIC.
    pub const GPU_DIRECT_RDMA_WITH_VMM: Attribute = Attribute(110);
    /// Whether memory can be registered with a NIC through nvidia-peermem.
    pub const GPU_DIRECT_RDMA: Attribute = Attribute(116);
    /// How writes of NICs can be flushed: bit 0 by the host, bit 1 by a stream.
    pub const GPU_DIRECT_RDMA_FLUSH: Attribute = Attribute(117);
    /// For whom writes of NICs are ordered without a flush: 0 nobody, 100 this device, 200 all devices.
    pub const GPU_DIRECT_RDMA_ORDERING: Attribute = Attribute(118);
    /// Whether waiting streams can wait for 64 bits.
    pub const STREAM_MEM_OPS_64: Attribute = Attribute(122);
    /// Whether waiting streams can compare by NOR.
    pub const STREAM_WAIT_VALUE_NOR: Attribute = Attribute(123);
    /// Whether memory can be exported as a dma-buf.
    pub const DMA_BUF: Attribute = Attribute(124);
}

/// A GPU.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(crate) driver: &'static Driver,
    pub(crate) raw: RawDevice,
    pub(crate) ordinal: i32,
}

impl Device {
    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The driver that knows it.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Its name.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn name(&self) -> Result<String, Error> {
        let mut name = [0u8; 256];
        let (start, room) = (name.as_mut_ptr().cast::<c_char>(), name.len() as c_int);
        // SAFETY: the driver writes at most `room` bytes, with a zero at the end.
        self.driver.check("cuDeviceGetName", unsafe {
            (self.driver.functions.cuDeviceGetName)(start, room, self.raw)
        })?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// An attribute.
    ///
    /// # Errors
    /// [`Error::Call`] where the driver does not know it.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: the driver writes an int.
        self.driver.check("cuDeviceGetAttribute", unsafe {
            (self.driver.functions.cuDeviceGetAttribute)(&mut value, attribute.0, self.raw)
        })?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use cuda_stand_in::StandIn;

    use super::*;
    use crate::{Context, Flush, Stream, Words};

    #[test]
    fn functions_that_are_missing_are_named_by_what_needs_them() {
        let stand_in = StandIn::new("");
        let path = stand_in.path();
        let hidden = ["cuStreamWaitValue32_v2"];
        let driver = Driver::load(path.as_os_str(), "old".into(), &hidden).expect("it opens");
        let driver: &'static Driver = Box::leak(Box::new(driver));
        assert_eq!(driver.missing(), hidden);
        let context = Context::primary(driver.device(0).expect("a device")).expect("a context");
        let (stream, words) = (Stream::legacy(&context), Words::new(&context, 1));
        let current = context.enter().expect("a context");
        let error = current.wait_word(&stream, &words.expect("a word"), 0, 1, Flush::No);
        let text = error.expect_err("it can't").to_string();
        assert!(text.contains("lacks cuStreamWaitValue32_v2"), "{text}");

        let hidden = ["cuStreamGetId"];
        let driver = Driver::load(path.as_os_str(), "older".into(), &hidden).expect("it opens");
        let driver: &'static Driver = Box::leak(Box::new(driver));
        let context = Context::primary(driver.device(0).expect("a device")).expect("a context");
        let (stream, legacy) = (Stream::new(&context), Stream::legacy(&context));
        let stream = stream.expect("a stream");
        // SAFETY: `CU_STREAM_LEGACY`.
        let named = unsafe { Stream::foreign(&context, core::ptr::without_provenance_mut(1)) };
        let current = context.enter().expect("a context");
        let id = |stream: &Stream| current.id(stream).expect("its handle");
        assert_eq!((id(&stream), id(&legacy)), (id(&stream), id(&named)));
        assert_ne!(id(&stream), id(&legacy));

        let hidden = ["cuMemFree_v2", "cuEventQuery"];
        let error = Driver::load(path.as_os_str(), "old".into(), &hidden);
        let text = error.expect_err("nothing works without").to_string();
        assert!(
            text.ends_with("it lacks cuMemFree_v2, cuEventQuery"),
            "{text}"
        );
    }
}
