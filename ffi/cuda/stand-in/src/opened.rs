//! A copy of the library, opened by a test.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use libloading::Library;
use tempfile::TempDir;

/// The library's name.
const NAME: &str = "libcuda_stand_in.so";

/// A copy of the library with a state of its own, so that tests in one process don't disturb each other.
#[derive(Debug)]
pub struct StandIn {
    folder: TempDir,
    library: Library,
}

/// Where cargo has put the library: beside the program, or in the folder `deps` there. It panics where it is not.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    let folder = program.parent().unwrap_or(Path::new("."));
    // What lies beside a program may be of an earlier build.
    let places = [folder.join("deps").join(NAME), folder.join(NAME)];
    let found = places.into_iter().find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{NAME} is not beside {}", program.display()))
}

impl StandIn {
    /// Copies the library and opens it with these options; see the file `options.rs`.
    ///
    /// # Panics
    /// If that fails: mostly since the tests' package does not name this one as a dependency, so that it was not built.
    pub fn new(options: &str) -> StandIn {
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join(NAME);
        std::fs::copy(library(), &copy).expect("a copy of the library");
        // SAFETY: it is the library of this package.
        let library = unsafe { Library::new(&copy) }.expect("it can be opened");
        let stand_in = StandIn { folder, library };
        stand_in.set(options);
        stand_in
    }

    /// Its path, to open the driver by.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// Sets the options anew.
    pub fn set(&self, options: &str) {
        let options = CString::new(options).expect("no zero in it");
        // SAFETY: the function of this package has this signature; the string lives until it returns.
        unsafe {
            let set = self
                .library
                .get::<unsafe extern "C" fn(*const c_char)>(b"rowmill_stand_in_options");
            set.expect("the function is there")(options.as_ptr());
        }
    }

    /// How many calls the thread with this number in the kernel has made.
    pub fn calls(&self, thread: u64) -> u64 {
        // SAFETY: the function of this package has this signature.
        unsafe {
            let calls = self
                .library
                .get::<unsafe extern "C" fn(u64) -> u64>(b"rowmill_stand_in_calls");
            calls.expect("the function is there")(thread)
        }
    }

    /// Begins or ends the capture of a stream, in a context that is current; whether it could.
    pub fn capture(&self, stream: *mut c_void, on: bool) -> bool {
        let mut graph: *mut c_void = ptr::null_mut();
        // SAFETY: CUDA's functions have these signatures; there are no pointers but to `graph`.
        let code = unsafe {
            if on {
                let begin = self
                    .library
                    .get::<unsafe extern "C" fn(*mut c_void, c_int) -> c_int>(
                        b"cuStreamBeginCapture_v2",
                    );
                begin.expect("the function is there")(stream, 0)
            } else {
                let end = self
                    .library
                    .get::<unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int>(
                        b"cuStreamEndCapture",
                    );
                end.expect("the function is there")(stream, &mut graph)
            }
        };
        code == 0
    }
}
