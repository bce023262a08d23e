//! userfaultfd for missing pages: the ioctls of `linux/userfaultfd.h`, defined by hand.
#![allow(unsafe_code)]

use outlive_io::fresh::FreshMemory;
use outlive_types::PAGE_BYTES;
use outlive_types::sync::plain::Mutex;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// _IOWR('\xAA', nr, size) and _IOR, as on x86 and Arm.
const fn iowr(number: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xAA << 8) | number
}
const fn ior(number: u64, size: usize) -> u64 {
    (2 << 30) | ((size as u64) << 16) | (0xAA << 8) | number
}

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: u64 = iowr(0x3F, size_of::<Api>());
const UFFDIO_REGISTER: u64 = iowr(0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: u64 = ior(0x01, size_of::<Span>());
const UFFDIO_WAKE: u64 = ior(0x02, size_of::<Span>());
const UFFDIO_COPY: u64 = iowr(0x03, size_of::<PlaceRequest>());
const UFFDIO_ZEROPAGE: u64 = iowr(0x04, size_of::<Zero>());
const UFFDIO_MOVE: u64 = iowr(0x05, size_of::<PlaceRequest>());

const FEATURE_MOVE: u64 = 1 << 16;
/// Notices of `mremap`, of `madvise` that drops memory, and of `munmap`. They need no privilege.
const FEATURE_NOTICES: u64 = (1 << 2) | (1 << 3) | (1 << 6);
const REGISTER_MODE_MISSING: u64 = 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const USER_MODE_ONLY: u64 = 1;
/// `_IO(0xAA, 0x00)`: returns a descriptor from /dev/userfaultfd.
const USERFAULTFD_IOC_NEW: u64 = 0xAA << 8;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`.
#[repr(C)]
struct PlaceRequest {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    /// Bytes placed, or a negative error.
    done: i64,
}

#[repr(C)]
struct Zero {
    span: Span,
    mode: u64,
    done: i64,
}

/// `struct uffd_msg`. The meaning of the words depends on the event.
#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

/// A notice of the kernel. Except for a fault, the thread that causes one waits until it is read,
/// and no page can be placed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A thread waits for the page at this address.
    Fault(usize),
    /// The memory of the range is at the address now.
    Moved(Range<usize>, usize),
    /// The content of the range is about to be dropped.
    Dropped(Range<usize>),
    /// The memory of the range is unmapped.
    Unmapped(Range<usize>),
}

/// Faults of missing pages that are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All faults, also those of system calls.
    Full,
    /// Faults of the program's own instructions; system calls into missing memory fail with EFAULT.
    UserOnly,
}

/// Result of an attempt to place pages.
#[derive(Debug)]
pub(super) enum Placed {
    /// All pages are placed.
    All,
    /// This number of bytes is placed; the next page already exists, by other means.
    UntilPresent(usize),
    /// This number of bytes is placed; the rest cannot be placed in this way.
    Refused(usize, io::Error),
    /// This number of bytes is placed. The rest is no longer registered, not mapped, or lies in
    /// several mappings (which differ in advice, for example): then parts of it can be placed.
    NotOne(usize),
    /// This number of bytes is placed. The rest cannot be placed now: a thread is mapping memory,
    /// or a notice must be read first.
    NotNow(usize),
}

/// A userfaultfd. Its methods place pages only where they are missing in registered memory; they
/// never change a page that exists.
#[derive(Debug)]
pub(super) struct Uffd {
    /// The descriptor until it is closed. Each waiting thread shares it.
    fd: Mutex<Option<Arc<OwnedFd>>>,
    stop: OwnedFd,
    pub mode: Mode,
}

impl Uffd {
    /// Opens one with the widest mode that the kernel gives; `user_only` limits it to that mode.
    pub fn open(user_only: bool) -> io::Result<Uffd> {
        let open = || {
            let full = if user_only { Err(io::ErrorKind::Unsupported.into()) } else { open_full() };
            match full {
                Ok(fd) => Ok((fd, Mode::Full)),
                Err(_) => open_with(USER_MODE_ONLY).map(|fd| (fd, Mode::UserOnly)),
            }
        };
        // Older kernels do not know MOVE; the attempt shows that. Without notices, moved memory
        // would be lost.
        let (mut fd, mode) = open()?;
        if handshake(&fd, FEATURE_NOTICES | FEATURE_MOVE).is_err() {
            (fd, _) = open()?;
            handshake(&fd, FEATURE_NOTICES)?;
        }
        Ok(Uffd { fd: Mutex::new(Some(Arc::new(fd))), stop: eventfd()?, mode })
    }

    /// Returns the descriptor, or EBADF once it is closed.
    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        let fd = self.fd.lock().clone();
        fd.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Makes the first touch of each missing page wait.
    pub fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let span = span(range);
        let mut register = Register { span, mode: REGISTER_MODE_MISSING, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut register)
    }

    /// Ends the registration, and wakes waiting threads: pages that are still missing are zero from
    /// then on.
    pub fn unregister(&self, range: &Range<usize>) -> io::Result<()> {
        let ended = self.ioctl(UFFDIO_UNREGISTER, &mut span(range));
        // The kernel wakes before it ends the registration. A thread whose fault is being handled
        // at that moment, with only the lock of its mapping, begins to wait after the wake.
        self.wake(range);
        ended
    }

    /// Wakes the threads that wait for these pages. A thread whose page is still missing faults
    /// again.
    pub fn wake(&self, range: &Range<usize>) {
        // It fails for no range of whole pages.
        let _ = self.ioctl(UFFDIO_WAKE, &mut span(range));
    }

    /// Places copies of `bytes`, whole pages.
    pub fn copy(&self, to: usize, bytes: &[u8]) -> Placed {
        let mut place = PlaceRequest {
            to: to as u64,
            from: bytes.as_ptr().expose_provenance() as u64,
            bytes: bytes.len() as u64,
            mode: 0,
            done: 0,
        };
        self.place(UFFDIO_COPY, &mut place)
    }

    /// Places the pages at `from` themselves, which are missing there afterwards. Where a page is
    /// missing at `from`, none is placed.
    ///
    /// # Safety
    /// The pages at `from` must be the caller's, and no other thread may use them meanwhile.
    pub unsafe fn move_pages(&self, to: usize, from: usize, bytes: usize) -> Placed {
        let mut place = PlaceRequest {
            to: to as u64,
            from: from as u64,
            bytes: bytes as u64,
            mode: MOVE_MODE_ALLOW_SRC_HOLES,
            done: 0,
        };
        self.place(UFFDIO_MOVE, &mut place)
    }

    /// True if memory is being moved, dropped or unmapped at this moment, and its notice is still
    /// to be read, or has just been read. If false, the notices of all earlier changes were read.
    pub fn is_changing(&self) -> bool {
        // The kernel returns this error before it finds that there is nothing to copy.
        let mut nothing = PlaceRequest { to: 0, from: 0, bytes: 0, mode: 0, done: 0 };
        let asked = self.ioctl(UFFDIO_COPY, &mut nothing);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Places zero pages where pages are missing.
    pub fn zero(&self, range: &Range<usize>) -> Placed {
        let mut zero = Zero { span: span(range), mode: 0, done: 0 };
        let Err(error) = self.ioctl(UFFDIO_ZEROPAGE, &mut zero) else { return Placed::All };
        let done = zero.done.max(0) as usize;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Placed::NotNow(done),
            Some(libc::EEXIST) => Placed::UntilPresent(done),
            Some(libc::ENOENT) => Placed::NotOne(done),
            _ => Placed::Refused(done, error),
        }
    }

    fn place(&self, request: u64, place: &mut PlaceRequest) -> Placed {
        let mut before = 0;
        loop {
            place.done = 0;
            let Err(error) = self.ioctl(request, place) else { return Placed::All };
            if place.done > 0 {
                let done = place.done as u64;
                place.to += done;
                place.from += done;
                place.bytes -= done;
                before += done as usize;
            }
            match error.raw_os_error() {
                Some(libc::EAGAIN) if place.bytes == 0 => return Placed::All,
                // Only a part was placed.
                Some(libc::EAGAIN) if place.done > 0 => {}
                Some(libc::EAGAIN) => return Placed::NotNow(before),
                Some(libc::EEXIST) => return Placed::UntilPresent(before),
                Some(libc::ENOENT) => return Placed::NotOne(before),
                // MOVE returns this for several mappings, but for other reasons as well.
                Some(libc::EINVAL) if place.bytes > PAGE_BYTES as u64 => {
                    return Placed::NotOne(before);
                }
                // The process ends.
                Some(libc::ESRCH) => return Placed::All,
                _ => return Placed::Refused(before, error),
            }
        }
    }

    /// Waits until there is a notice to read; false once [`Uffd::stop`] was called.
    pub fn wait(&self) -> bool {
        self.fd().is_ok_and(|fd| wait(&fd, &self.stop))
    }

    /// Reads the next notice, if there is one.
    pub fn read(&self) -> Option<Notice> {
        read(&*self.fd().ok()?)
    }

    /// Runs `work` and reads its notices, which no other thread gets; a thread that drops memory
    /// waits until its notice is read. Also returns the notices, except those of dropped memory,
    /// which `work` causes itself.
    ///
    /// # Errors
    /// If no thread can be started; then `work` was not run.
    pub fn hearing<T>(&self, work: impl FnOnce() -> T) -> io::Result<(T, Vec<Notice>)> {
        let (fd, done) = (self.fd()?, eventfd()?);
        let (mut waiting, mut notices) = (Vec::new(), Vec::new());
        let value = std::thread::scope(|scope| {
            let hear = || {
                while wait(&fd, &done) {
                    match read(&fd) {
                        Some(Notice::Fault(address)) => waiting.push(address),
                        Some(Notice::Dropped(_)) | None => {}
                        Some(notice) => notices.push(notice),
                    }
                }
            };
            std::thread::Builder::new().name("outlive-hear".into()).spawn_scoped(scope, hear)?;
            // Also ends the reading when `work` panics.
            let _end = End(&done);
            Ok::<T, io::Error>(work())
        })?;
        // These threads fault again, and are served then.
        for address in waiting {
            self.wake(&(address..address + PAGE_BYTES));
        }
        Ok((value, notices))
    }

    /// Ends every [`Uffd::wait`], now and later.
    pub fn stop(&self) {
        tell(&self.stop);
    }

    /// Does the same, and ends all registrations: missing pages are zero from then on, and no
    /// thread waits.
    pub fn close(&self) {
        self.stop();
        self.fd.lock().take();
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        ioctl(&*self.fd()?, request, argument)
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved; a new descriptor has no other owner.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn tell(eventfd: &OwnedFd) {
    // SAFETY: only a number is passed.
    unsafe { libc::eventfd_write(eventfd.as_raw_fd(), 1) };
}

/// Signals the eventfd when it is dropped.
struct End<'a>(&'a OwnedFd);

impl Drop for End<'_> {
    fn drop(&mut self) {
        tell(self.0);
    }
}

/// Waits until `fd` is readable; false if `stop` was signalled.
fn wait(fd: &OwnedFd, stop: &OwnedFd) -> bool {
    loop {
        let mut ready = [stop, fd].map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: the array is writable and has two entries.
        let polled = unsafe { libc::poll(ready.as_mut_ptr(), 2, -1) };
        if polled > 0 {
            return ready[0].revents == 0;
        }
    }
}

fn read(fd: &OwnedFd) -> Option<Notice> {
    let mut message = Message::default();
    // SAFETY: the whole message may be written; any bytes are a valid one.
    let read =
        unsafe { libc::read(fd.as_raw_fd(), (&raw mut message).cast(), size_of::<Message>()) };
    if read != size_of::<Message>() as isize {
        return None; // Another thread has taken it.
    }
    let [first, second, third] = message.words.map(|word| word as usize);
    match message.event {
        // Flags come before the address.
        EVENT_PAGEFAULT => Some(Notice::Fault(second / PAGE_BYTES * PAGE_BYTES)),
        EVENT_REMAP => Some(Notice::Moved(first..first + third, second)),
        EVENT_REMOVE => Some(Notice::Dropped(first..second)),
        EVENT_UNMAP => Some(Notice::Unmapped(first..second)),
        _ => None,
    }
}

fn span(range: &Range<usize>) -> Span {
    Span { start: range.start as u64, bytes: (range.end - range.start) as u64 }
}

fn ioctl<T>(fd: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the requests of this file contain the size of the structure that they take, which may
    // be read and written here. Their effect on other memory is limited. They place pages where the
    // program has none, which no reference can point to (`LazyMemory` says why). They read
    // `PlaceRequest::from`, which is a live slice or memory that the caller of `move_pages`
    // promised.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn handshake(fd: &OwnedFd, features: u64) -> io::Result<()> {
    ioctl(fd, UFFDIO_API, &mut Api { api: UFFD_API, features, ioctls: 0 })
}

fn open_full() -> io::Result<OwnedFd> {
    open_with(0).or_else(|error| open_device().map_err(|_| error))
}

fn open_with(flags: u64) -> io::Result<OwnedFd> {
    let flags = flags as libc::c_int | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the call takes no memory; a new descriptor has no other owner.
    unsafe {
        match libc::syscall(libc::SYS_userfaultfd, flags) {
            fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Opens one through the device, whose file permissions control access.
fn open_device() -> io::Result<OwnedFd> {
    let device = std::fs::File::open("/dev/userfaultfd")?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the request takes a number; a new descriptor has no other owner.
    unsafe {
        match libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) {
            fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Private memory of our own, without pages at first, at a multiple of 2 MiB.
#[derive(Debug)]
pub(super) struct Shadow {
    whole: *mut libc::c_void,
    whole_bytes: usize,
    start: usize,
    fresh: Option<FreshMemory>,
}

// SAFETY: it holds only addresses; code that reads or writes through them says why it may.
unsafe impl Send for Shadow {}
// SAFETY: as above.
unsafe impl Sync for Shadow {}

impl Shadow {
    /// Maps `bytes` bytes, a multiple of 2 MiB.
    pub fn new(bytes: usize) -> io::Result<Shadow> {
        let block = outlive_types::BLOCK_BYTES;
        let whole_bytes = bytes + block;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let whole =
            unsafe { libc::mmap(std::ptr::null_mut(), whole_bytes, protection, flags, -1, 0) };
        if whole == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = whole.expose_provenance().next_multiple_of(block);
        // SAFETY: the mapping is ours, and stays as long as the shadow.
        let fresh = unsafe { FreshMemory::new(&(start..start + bytes)) };
        Ok(Shadow { whole, whole_bytes, start, fresh })
    }

    /// Prepares a part; call it before the part is written.
    pub fn take(&self, part: &Range<usize>) {
        if let Some(fresh) = &self.fresh {
            fresh.take(part, false);
        }
    }

    /// Bytes that were used, in small and in huge pages.
    pub fn touched(&self) -> [u64; 2] {
        self.fresh.as_ref().map_or([0; 2], FreshMemory::touched)
    }

    /// Address of the first byte.
    pub fn start(&self) -> usize {
        self.start
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and an owner that drops a `Shadow` has no slice of it any
        // more.
        unsafe { libc::munmap(self.whole, self.whole_bytes) };
    }
}

/// Drops the pages and their content; the next touch finds zeros, or waits.
///
/// # Safety
/// The range, whole pages of private anonymous memory, must be the caller's, and no thread may rely
/// on its content.
pub(super) unsafe fn drop_pages(range: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: passed on to the caller.
    match unsafe { libc::madvise(start, range.end - range.start, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process at once, with `message` on standard error. No destructor and no handler runs,
/// since any of them might wait for memory that does not come. The exit code is 3, as that of the
/// command for damage.
pub fn end_program(message: &str) -> ! {
    let text = format!("outlive: {message}\n");
    // SAFETY: the bytes exist; 2 is a descriptor or an error; `_exit` takes a number.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::_exit(3)
    }
}

/// Makes libc call `prepare` before every `fork` of this process, in the thread that forks.
pub(super) fn before_fork(prepare: extern "C" fn()) -> bool {
    // SAFETY: the function exists as long as the process.
    unsafe { libc::pthread_atfork(Some(prepare), None, None) == 0 }
}

/// Copies `bytes` to our own memory.
///
/// # Safety
/// `to` must be memory of ours that no other thread uses meanwhile, with room for all of `bytes`.
pub(super) unsafe fn write(to: usize, bytes: &[u8]) {
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to);
    // SAFETY: passed on to the caller; memory that no other thread uses does not overlap a live
    // slice.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Returns our own memory as a slice, for as long as the caller needs it.
///
/// # Safety
/// `at` must be initialised memory of ours of `bytes` bytes that no thread writes meanwhile.
pub(super) unsafe fn slice<'a>(at: usize, bytes: usize) -> &'a [u8] {
    let at: *const u8 = std::ptr::with_exposed_provenance(at);
    // SAFETY: passed on to the caller.
    unsafe { std::slice::from_raw_parts(at, bytes) }
}

/// Reads a byte of the program's memory as the program would, and flips bits of it.
///
/// # Safety
/// `at` must be mapped and writable; other threads may use it only in this way.
pub(super) unsafe fn touch(at: usize, flip: u8) -> u8 {
    let at: *const std::sync::atomic::AtomicU8 = std::ptr::with_exposed_provenance(at);
    // The compiler must not see that no bit is flipped, and remove the touch.
    let flip = std::hint::black_box(flip);
    // SAFETY: passed on to the caller; an atomic may be used from several threads.
    std::hint::black_box(unsafe { (*at).fetch_xor(flip, std::sync::atomic::Ordering::Relaxed) })
}
