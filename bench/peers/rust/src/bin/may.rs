//! may_minihttp, one worker: stackful coroutines, and a minimal HTTP.

use std::io::{self, BufRead};

use bytes::BufMut;
use may_minihttp::{HttpServer, HttpService, Request, Response};

#[derive(Clone)]
struct Rpc;

impl HttpService for Rpc {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        response.header("Content-Type: application/json");
        let mut body = request.body();
        peers::answer(body.fill_buf()?, &mut response.body_mut().writer())
    }
}

fn main() -> io::Result<()> {
    may::config().set_workers(1);
    HttpServer(Rpc).start(peers::address())?.wait();
    Ok(())
}
