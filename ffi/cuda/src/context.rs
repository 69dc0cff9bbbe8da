//! A device's primary context, which everybody in the process shares who uses the CUDA runtime, PyTorch too.

use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use std::sync::Arc;

use crate::driver::{Device, Driver};
use crate::error::Error;
use crate::sys::{Functions, RawContext};

/// A device's primary context, kept for as long as a clone of it lives.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: RawContext,
}

// SAFETY: contexts may be used by all threads; the driver locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// The device's primary context, made where there is none yet, which takes a while.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn primary(device: Device) -> Result<Context, Error> {
        let mut raw = ptr::null_mut();
        let driver = device.driver;
        // SAFETY: the driver writes the context's handle.
        driver.check("cuDevicePrimaryCtxRetain", unsafe {
            (driver.functions.cuDevicePrimaryCtxRetain)(&mut raw, device.raw)
        })?;
        let inner = Arc::new(Inner { device, raw });
        Ok(Context { inner })
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// Makes it this thread's current one until the answer is dropped: all that is done in it is a method of that.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn enter(&self) -> Result<Current<'_>, Error> {
        let driver = self.inner.device.driver;
        // SAFETY: the context is retained while `self` lives.
        driver.check("cuCtxPushCurrent", unsafe {
            (driver.functions.cuCtxPushCurrent_v2)(self.inner.raw)
        })?;
        Ok(Current {
            context: self,
            here: PhantomData,
        })
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.device.driver
    }

    /// Does what a drop has to do, and logs that it failed.
    pub(crate) fn at_end(&self, what: &'static str, end: impl FnOnce(&Current<'_>) -> i32) {
        let done = self.enter().and_then(|current| {
            let code = end(&current);
            self.driver().check(what, code)
        });
        if let Err(error) = done {
            tracing::debug!(%error, "something of CUDA is left to the process's end");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(GPU {})", self.inner.device.ordinal)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.device.driver;
        // SAFETY: retained once, released once.
        let code = unsafe { (driver.functions.cuDevicePrimaryCtxRelease_v2)(self.device.raw) };
        if let Err(error) = driver.check("cuDevicePrimaryCtxRelease", code) {
            tracing::debug!(%error, "a context is left to the process's end");
        }
    }
}

/// A context that is this thread's current one.
#[derive(Debug)]
pub struct Current<'a> {
    pub(crate) context: &'a Context,
    /// Of this thread alone.
    here: PhantomData<*const ()>,
}

impl Current<'_> {
    pub(crate) fn functions(&self) -> &'static Functions {
        &self.context.driver().functions
    }

    pub(crate) fn check(&self, call: &'static str, code: i32) -> Result<(), Error> {
        self.context.driver().check(call, code)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: the driver writes a handle. This thread, which the value has not left, has pushed once for it; where two are
        // dropped in another order, calls between find another context and fail.
        let code = unsafe { (self.functions().cuCtxPopCurrent_v2)(&mut popped) };
        if let Err(error) = self.check("cuCtxPopCurrent", code) {
            tracing::debug!(%error, "the context stays current");
        }
    }
}
