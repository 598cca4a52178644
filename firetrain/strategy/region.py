"""Rectangles of an activation: some images of a batch, and some of their channels."""

from __future__ import annotations

from typing import NamedTuple


class Region(NamedTuple):
    """Images `first_image` to `end_image` - 1 of a batch, and channels `first_channel` to `end_channel` - 1.

    >>> Region(0, 4, 0, 6) & Region(2, 8, 3, 9)
    Region(first_image=2, end_image=4, first_channel=3, end_channel=6)
    """

    first_image: int
    end_image: int
    first_channel: int
    end_channel: int

    @property
    def images(self) -> int:
        """The number of images."""
        return self.end_image - self.first_image

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.end_channel - self.first_channel

    @property
    def size(self) -> int:
        """The number of (image, channel) pairs."""
        return self.images * self.channels

    def __and__(self, other: Region) -> Region:
        """What two regions have in common; a region of size 0 if that is nothing."""
        first_image, end_image = max(self.first_image, other.first_image), min(self.end_image, other.end_image)
        first, end = max(self.first_channel, other.first_channel), min(self.end_channel, other.end_channel)
        if end_image <= first_image or end <= first:
            return NOTHING
        return Region(first_image, end_image, first, end)

    def in_words(self) -> str:
        """The region for a message.

        >>> Region(0, 8, 0, 64).in_words()
        'channels 0 to 63 of images 0 to 7'
        """
        return f"channels {self.first_channel} to {self.end_channel - 1} of images {self.first_image} to {self.end_image - 1}"

    def of(self, first: int, end: int) -> Region:
        """The same images of channels `first` to `end` - 1, which are numbered from 0 then; perhaps no channel."""
        begin, stop = max(self.first_channel, first), min(self.end_channel, end)
        return (
            self._replace(first_channel=begin - first, end_channel=stop - first)
            if begin < stop
            else self._replace(first_channel=0, end_channel=0)
        )

    def spread(self, factor: int) -> Region:
        """The same region if every channel becomes `factor` channels, as when an image's positions are flattened."""
        return self._replace(first_channel=self.first_channel * factor, end_channel=self.end_channel * factor)


NOTHING = Region(0, 0, 0, 0)
