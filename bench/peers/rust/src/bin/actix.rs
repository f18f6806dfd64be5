//! actix-web, one worker.

use actix_web::web::{Bytes, post};
use actix_web::{App, HttpResponse, HttpServer};

async fn call(body: Bytes) -> HttpResponse {
    let mut reply = Vec::with_capacity(128);
    match peers::answer(&body, &mut reply) {
        Ok(()) => HttpResponse::Ok().content_type("application/json").body(reply),
        Err(_) => HttpResponse::InternalServerError().finish(),
    }
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    HttpServer::new(|| App::new().route("/", post().to(call)))
        .workers(1)
        .bind(peers::address())?
        .run()
        .await
}
