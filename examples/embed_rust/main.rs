//! ptd from Rust, without a crate: the declarations of ptd.h, and a session around a toy model.
//!
//!     rustc -O -L native=DIR_OF_LIBPTD -l dylib=ptd examples/embed_rust/main.rs
//!
//! Prints the output's token ids on one line and its counters on the next.

use std::ffi::{c_char, c_void, CStr};
use std::mem::size_of;
use std::ptr::{null, null_mut};

const ABI_VERSION: i32 = 1;
const RUNNING: i32 = 0;
const VOCAB: i32 = 23;

#[repr(C)]
struct Config {
    struct_size: usize,
    vocab_size: i32,
    max_seq_len: i32,
    output_top_k: i32,
    max_path: i32,
    max_nodes: i32,
    reserved: i32,
    node_buckets: *const i32,
    n_node_buckets: usize,
    eos_ids: *const i32,
    n_eos_ids: usize,
}

#[repr(C)]
struct Needs {
    struct_size: usize,
    plan_bytes: usize,
    max_nodes: i32,
    output_stride: i32,
    prompt_outputs: i32,
    step_cost: i32,
    top_p: f32,
    reserved: i32,
}

#[repr(C)]
struct Request {
    struct_size: usize,
    max_new_tokens: i32,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    reserved: i32,
    seed: u64,
    stop_ids: *const i32,
    n_stop_ids: usize,
}

#[repr(C)]
struct Plan {
    struct_size: usize,
    bucket: i32,
    n_nodes: i32,
    n_verify: i32,
    prefix_len: i32,
    n_commit: i32,
    flags: i32,
    mask_words: i32,
    max_path: i32,
    token_ids: *const i32,
    positions: *const i32,
    commit_src: *const i32,
    temperature: *const f32,
    uniform: *const f32,
    sampling: *const f32,
    mask: *const u64,
}

#[repr(C)]
struct Step {
    struct_size: usize,
    tokens: *const i32,
    n_tokens: usize,
    n_accepted: i32,
    finish_reason: i32,
}

#[allow(non_camel_case_types)]
enum ptd_session {}

extern "C" {
    fn ptd_abi_version() -> i32;
    fn ptd_last_error() -> *const c_char;
    fn ptd_session_create(
        drafter: *const u8,
        drafter_size: usize,
        options: *const u8,
        options_size: usize,
        config: *const Config,
        session: *mut *mut ptd_session,
    ) -> i32;
    fn ptd_session_destroy(session: *mut ptd_session);
    fn ptd_session_needs(session: *mut ptd_session, needs: *mut Needs) -> i32;
    fn ptd_session_begin(
        session: *mut ptd_session,
        prompt: *const i32,
        n_prompt: usize,
        request: *const Request,
    ) -> i32;
    fn ptd_session_plan(
        session: *mut ptd_session,
        block: *mut c_void,
        block_size: usize,
        plan: *mut Plan,
    ) -> i32;
    fn ptd_session_commit(
        session: *mut ptd_session,
        output: *const i32,
        n_output: usize,
        step: *mut Step,
    ) -> i32;
}

/// A status as a Result: what ptd says of it is the error.
fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // Safe: the message is never null and holds until this thread's next error.
    let message = unsafe { CStr::from_ptr(ptd_last_error()) };
    Err(format!("{} (status {status})", message.to_string_lossy()))
}

/// A handle with memory for its plans; dropped with its last use.
struct Session {
    handle: *mut ptd_session,
    block: Vec<u64>,
    stride: usize,
}

impl Session {
    fn new(drafter: &str, options: &str, max_seq_len: i32) -> Result<Session, String> {
        let config = Config {
            struct_size: size_of::<Config>(),
            vocab_size: VOCAB,
            max_seq_len,
            output_top_k: 0,
            max_path: 0,
            max_nodes: 0,
            reserved: 0,
            node_buckets: null(),
            n_node_buckets: 0,
            eos_ids: null(),
            n_eos_ids: 0,
        };
        let mut session = Session { handle: null_mut(), block: Vec::new(), stride: 0 };
        check(unsafe {
            ptd_session_create(
                drafter.as_ptr(),
                drafter.len(),
                options.as_ptr(),
                options.len(),
                &config,
                &mut session.handle,
            )
        })?;
        let mut needs: Needs = unsafe { std::mem::zeroed() };
        needs.struct_size = size_of::<Needs>();
        check(unsafe { ptd_session_needs(session.handle, &mut needs) })?;
        session.block.resize(needs.plan_bytes.div_ceil(8), 0);
        session.stride = needs.output_stride as usize;
        Ok(session)
    }

    /// Decodes a prompt with the model `next`: the token after a token.
    fn generate(
        &mut self,
        prompt: &[i32],
        max_new_tokens: i32,
        next: impl Fn(i32) -> i32,
    ) -> Result<(Vec<i32>, usize), String> {
        let mut request: Request = unsafe { std::mem::zeroed() };
        request.struct_size = size_of::<Request>();
        request.max_new_tokens = max_new_tokens;
        check(unsafe {
            ptd_session_begin(self.handle, prompt.as_ptr(), prompt.len(), &request)
        })?;
        let (mut output, mut steps) = (Vec::new(), 0);
        loop {
            let mut plan: Plan = unsafe { std::mem::zeroed() };
            plan.struct_size = size_of::<Plan>();
            check(unsafe {
                ptd_session_plan(
                    self.handle,
                    self.block.as_mut_ptr().cast(),
                    self.block.len() * 8,
                    &mut plan,
                )
            })?;
            let rows = plan.n_nodes as usize;
            // Safe: token_ids has at least n_nodes entries, in our block.
            let tokens = unsafe { std::slice::from_raw_parts(plan.token_ids, rows) };
            let mut ids = vec![-1; rows * self.stride];
            for (row, &token) in tokens.iter().enumerate() {
                ids[row * self.stride] = next(token);
            }
            let mut step: Step = unsafe { std::mem::zeroed() };
            step.struct_size = size_of::<Step>();
            check(unsafe { ptd_session_commit(self.handle, ids.as_ptr(), ids.len(), &mut step) })?;
            steps += 1;
            // Safe: the tokens hold until the next commit.
            output.extend(unsafe { std::slice::from_raw_parts(step.tokens, step.n_tokens) });
            if step.finish_reason != RUNNING {
                return Ok((output, steps));
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        unsafe { ptd_session_destroy(self.handle) }
    }
}

fn run() -> Result<(), String> {
    if unsafe { ptd_abi_version() } != ABI_VERSION {
        return Err("libptd.so has another ABI than these declarations".into());
    }
    if let Err(message) = Session::new("suffix", r#"{"factor": -1}"#, 200) {
        eprintln!("as it should be: {message}");
    }
    let mut session = Session::new("suffix", r#"{"factor": 2.0}"#, 200)?;
    let (output, steps) = session.generate(&[1, 2, 3], 60, |token| (token * 7 + 3) % VOCAB)?;
    let words: Vec<String> = output.iter().map(i32::to_string).collect();
    println!("{}\n{} tokens in {steps} steps", words.join(" "), output.len());
    Ok(())
}

fn main() {
    if let Err(message) = run() {
        eprintln!("{message}");
        std::process::exit(1);
    }
}
