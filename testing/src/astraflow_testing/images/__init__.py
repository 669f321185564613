"""What tests of images need."""
