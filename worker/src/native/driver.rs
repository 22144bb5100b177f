//! NVIDIA's driver: which GPUs this process may use, and what they are. It is asked by itself, before libtorch's CUDA part, whose
//! 3 GB are not worth loading where there is no driver, and which says less about what is wrong.
//! <https://docs.nvidia.com/cuda/cuda-driver-api/>

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null;

use libloading::os::unix::Library;

use super::library;

/// NVIDIA's own name of it. The container toolkit brings it into a container; it is in no image.
const LIBRARY: &str = "libcuda.so.1";

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const MAJOR: c_int = 75;
/// See [`MAJOR`].
const MINOR: c_int = 76;

/// A GPU that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Its memory.
    pub bytes: u64,
    /// Compute capability, such as (9, 0).
    pub capability: (i32, i32),
}

/// The driver, initialised.
#[derive(Debug)]
pub struct Driver(&'static Library);

/// Why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is none: the loader's words.
    Absent(String),
    /// It is there and refuses: its own words.
    Refuses(String),
}

impl Driver {
    /// Finds and initialises it.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn open() -> Result<Self, Unusable> {
        let driver = Self(library::open(LIBRARY).map_err(Unusable::Absent)?);
        // SAFETY: (here and below) the types are those of cuda.h, and every pointer is to a value that lives through the call.
        unsafe {
            let init: Symbol<unsafe extern "C" fn(c_uint) -> c_int> = driver.symbol("cuInit")?;
            driver.checked(init(0))?;
        }
        Ok(driver)
    }

    /// The newest CUDA that it can run.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn cuda_version(&self) -> Result<(i32, i32), Unusable> {
        let mut version = 0;
        unsafe {
            let get: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> = self.symbol("cuDriverGetVersion")?;
            self.checked(get(&raw mut version))?;
        }
        Ok((version / 1000, version % 1000 / 10))
    }

    /// The GPUs in order of their numbers.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn gpus(&self) -> Result<Vec<Gpu>, Unusable> {
        let mut count = 0;
        unsafe {
            let get: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> = self.symbol("cuDeviceGetCount")?;
            self.checked(get(&raw mut count))?;
        }
        (0..count).map(|number| self.gpu(number)).collect()
    }

    fn gpu(&self, number: c_int) -> Result<Gpu, Unusable> {
        let (mut device, mut name, mut bytes) = (0, [0 as c_char; 256], 0usize);
        unsafe {
            let get: Symbol<unsafe extern "C" fn(*mut c_int, c_int) -> c_int> = self.symbol("cuDeviceGet")?;
            self.checked(get(&raw mut device, number))?;
            type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
            let get: Symbol<Name> = self.symbol("cuDeviceGetName")?;
            // One less: the last byte stays zero.
            self.checked(get(name.as_mut_ptr(), name.len() as c_int - 1, device))?;
            let get: Symbol<unsafe extern "C" fn(*mut usize, c_int) -> c_int> = self.symbol("cuDeviceTotalMem_v2")?;
            self.checked(get(&raw mut bytes, device))?;
        }
        let capability = (self.attribute(MAJOR, device)?, self.attribute(MINOR, device)?);
        // SAFETY: zero-terminated, see above.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Gpu {
            name: name.to_string_lossy().into_owned(),
            bytes: bytes as u64,
            capability,
        })
    }

    fn attribute(&self, which: c_int, device: c_int) -> Result<i32, Unusable> {
        let mut value = 0;
        unsafe {
            type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
            let get: Symbol<Attribute> = self.symbol("cuDeviceGetAttribute")?;
            self.checked(get(&raw mut value, which, device))?;
        }
        Ok(value)
    }

    /// Of the type that cuda.h gives the function.
    unsafe fn symbol<T>(&self, name: &str) -> Result<Symbol<T>, Unusable> {
        unsafe { self.0.get(name.as_bytes()) }
            .map_err(|error| Unusable::Refuses(format!("{:#}", anyhow::Error::new(error))))
    }

    fn checked(&self, code: c_int) -> Result<(), Unusable> {
        if code == 0 {
            return Ok(());
        }
        let mut words: *const c_char = null();
        let said = unsafe {
            type Words = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
            self.symbol::<Words>("cuGetErrorString")
                .is_ok_and(|get| get(code, &raw mut words) == 0)
        };
        if !said || words.is_null() {
            return Err(Unusable::Refuses(format!("error {code}")));
        }
        // SAFETY: the driver's own constant text.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        Err(Unusable::Refuses(format!("error {code}, {words}")))
    }
}

type Symbol<T> = libloading::os::unix::Symbol<T>;
