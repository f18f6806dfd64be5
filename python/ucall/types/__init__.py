"""How rich values travel: arrays and images as bytes, which JSON carries in base64."""
