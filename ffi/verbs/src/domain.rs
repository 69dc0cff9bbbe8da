//! Protection domains: what belongs to one client and to nobody else.

use core::ptr::NonNull;
use std::fmt;
use std::sync::Arc;

use crate::device::Context;
use crate::error::{Call, Error};
use crate::live;
use crate::sys;

/// A protection domain. Queue pairs reach memory that is registered in their own domain only, so that
/// one domain a client keeps the clients' keys apart. Cloning it is cheap; it lives as long as anything in it.
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<sys::ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs allows calls on one domain from any thread at the same time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// A new domain on the device.
    ///
    /// # Errors
    /// A failed call, where the device has no more of them.
    pub fn new(context: &Context) -> Result<ProtectionDomain, Error> {
        // SAFETY: the context is open.
        let raw = sys::pointer(Call::AllocPd, unsafe { sys::ibv_alloc_pd(context.raw()) })?;
        let context = context.clone();
        live::DOMAINS.made();
        let inner = Arc::new(Inner { raw, context });
        Ok(ProtectionDomain { inner })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.inner.raw.as_ptr()
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain of {:?}", self.inner.context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made in `new` and freed here only. Whatever was made in it holds an `Arc` of it.
        let answer = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        match sys::check(Call::DeallocPd, answer) {
            Ok(()) => live::DOMAINS.gone(),
            Err(error) => tracing::warn!(%error, "a protection domain is left behind"),
        }
    }
}
