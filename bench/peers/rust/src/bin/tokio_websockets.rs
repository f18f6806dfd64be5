//! tokio-websockets on one thread: `echo` returns each message, `sum` parses it with serde.
//!
//! tokio_websockets echo|sum PORT

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_websockets::{Error, Message, ServerBuilder};

async fn serve(stream: TcpStream, is_echo: bool) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let (_, mut socket) = ServerBuilder::new().accept(stream).await?;
    while let Some(message) = socket.next().await.transpose()? {
        let reply = if is_echo {
            message
        } else {
            let mut reply = Vec::with_capacity(128);
            peers::answer(message.as_payload(), &mut reply)?;
            Message::text(String::from_utf8_lossy(&reply).into_owned())
        };
        socket.send(reply).await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let is_echo = std::env::args().nth(1).as_deref() == Some("echo");
    let listener = TcpListener::bind(peers::address()).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream, is_echo));
    }
}
