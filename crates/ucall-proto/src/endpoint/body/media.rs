//! Media types: of bodies, and those that a caller accepts.

use crate::http1::Head;

/// What a body is, or what a response may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Media {
    Json,
    Npy,
    Octets,
    Safetensors,
    /// An image of this type, of any if it is `*`.
    Image(ImageType),
    Multipart,
}

/// The type of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ImageType {
    Any,
    /// The index in [`IMAGES`].
    Known(usize),
}

/// The images that functions return, with their first bytes; a dot matches any.
pub(super) const IMAGES: [(&str, &[u8]); 7] = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/webp", b"RIFF....WEBP"),
    ("image/gif", b"GIF8"),
    ("image/bmp", b"BM"),
    ("image/tiff", b"II*\0"),
    ("image/tiff", b"MM\0*"),
];

/// The media type of a file that begins with these bytes.
pub(super) fn image_type(file: &[u8]) -> Option<&'static str> {
    let is_same = |(byte, &wanted): (&u8, &u8)| *byte == wanted || wanted == b'.';
    let begins = |start: &[u8]| file.len() >= start.len() && file.iter().zip(start).all(is_same);
    IMAGES.into_iter().find(|(_, start)| begins(start)).map(|(name, _)| name)
}

/// The type and the subtype of a media type, without its parameters.
pub(super) fn without_parameters(value: &[u8]) -> &[u8] {
    value.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii()
}

impl Media {
    /// Of the value of a header.
    pub(super) fn named(value: &[u8]) -> Option<Self> {
        let name = without_parameters(value).to_ascii_lowercase();
        Some(match &*name {
            b"application/json" => Self::Json,
            b"application/x-npy" => Self::Npy,
            b"application/octet-stream" => Self::Octets,
            b"application/safetensors" => Self::Safetensors,
            b"multipart/form-data" => Self::Multipart,
            b"image/*" => Self::Image(ImageType::Any),
            name if name.ends_with(b"+json") && name.starts_with(b"application/") => Self::Json,
            name => {
                let at = IMAGES.iter().position(|(it, _)| it.as_bytes() == name);
                return match at {
                    Some(at) => Some(Self::Image(ImageType::Known(at))),
                    None if name.starts_with(b"image/") => Some(Self::Image(ImageType::Any)),
                    None => None,
                };
            }
        })
    }

    /// What a caller accepts, the most wanted first; JSON if it does not say. Empty if there is
    /// nothing of what responses may be.
    pub(super) fn accepted_by(head: &Head<'_>) -> Vec<Self> {
        let values: Vec<&[u8]> = head.headers().named("accept").collect();
        if values.iter().all(|value| value.is_empty()) {
            return vec![Self::Json];
        }
        let ranges = values.iter().flat_map(|value| value.split(|&byte| byte == b','));
        let mut accepted: Vec<(u32, Self)> = Vec::new();
        for range in ranges.take(RANGES_MAX) {
            let name = without_parameters(range);
            let media = match name {
                b"*/*" | b"application/*" => Some(Self::Json),
                name => Self::named(name).filter(|&media| match media {
                    Self::Multipart => false,
                    // A type that functions do not return.
                    Self::Image(ImageType::Any) => name.ends_with(b"/*"),
                    _ => true,
                }),
            };
            if let (Some(media), quality @ 1..) = (media, quality(range)) {
                accepted.push((quality, media));
            }
        }
        accepted.sort_by_key(|&(quality, _)| u32::MAX - quality);
        accepted.into_iter().map(|(_, media)| media).collect()
    }
}

/// Media ranges of one request that count.
const RANGES_MAX: usize = 32;

/// The weight of a media range in thousandths (RFC 9110, section 12.4.2).
fn quality(range: &[u8]) -> u32 {
    let weight = range
        .split(|&byte| byte == b';')
        .skip(1)
        .map(<[u8]>::trim_ascii)
        .find_map(|it| it.strip_prefix(b"q=").or_else(|| it.strip_prefix(b"Q=")));
    let Some(weight) = weight else { return 1000 };
    let weight = std::str::from_utf8(weight).ok().and_then(|text| text.parse::<f64>().ok());
    weight.map_or(1000, |weight| (weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{HeadLimits, parse_head};

    fn accepted(accept: &str) -> Vec<Media> {
        let text = format!("POST /f HTTP/1.1\r\nHost: a\r\n{accept}\r\n");
        let head = parse_head(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        Media::accepted_by(&head)
    }

    #[test]
    fn what_a_caller_accepts_is_in_the_order_of_its_wishes() {
        use Media::{Image, Json, Npy, Octets};
        assert_eq!(accepted(""), [Json]);
        assert_eq!(accepted("Accept:\r\n"), [Json]);
        assert_eq!(accepted("Accept: */*\r\n"), [Json]);
        let png = Image(ImageType::Known(0));
        let image = Image(ImageType::Any);
        assert_eq!(
            accepted("Accept: image/avif,IMAGE/PNG;q=0.8,*/*;q=0.5,image/*\r\n"),
            [image, png, Json]
        );
        let lines =
            "Accept: application/x-npy;q=0, text/html\r\nAccept: application/octet-stream\r\n";
        assert_eq!(accepted(lines), [Octets]);
        assert_eq!(accepted("Accept: application/json;q=0.1, application/x-npy\r\n"), [Npy, Json]);
        assert!(accepted("Accept: text/html, multipart/form-data\r\n").is_empty());
    }

    #[test]
    fn images_are_known_by_their_first_bytes() {
        assert_eq!(image_type(b"\x89PNG\r\n\x1a\n..."), Some("image/png"));
        assert_eq!(image_type(b"RIFF\x01\x02\x03\x04WEBPVP8"), Some("image/webp"));
        assert_eq!(image_type(b"MM\0*"), Some("image/tiff"));
        assert_eq!(image_type(b"\x89PNG\r\n"), None);
        assert_eq!(image_type(b""), None);
    }
}
