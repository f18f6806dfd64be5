//! ntex, one worker. Its own runtime uses io_uring if the system allows it.

use ntex::util::Bytes;
use ntex::web::{App, HttpResponse, HttpServer, post};

async fn call(body: Bytes) -> HttpResponse {
    let mut reply = Vec::with_capacity(128);
    match peers::answer(&body, &mut reply) {
        Ok(()) => HttpResponse::Ok().content_type("application/json").body(reply),
        Err(_) => HttpResponse::InternalServerError().finish(),
    }
}

#[ntex::main]
async fn main() -> std::io::Result<()> {
    HttpServer::new(async || App::new().route("/", post().to(call)))
        .workers(1)
        .bind(peers::address())?
        .run()
        .await
}
