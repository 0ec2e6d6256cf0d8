// Service worker of the site: the files of the site, from the cache of this version; nothing else is fetched.
const VERSION = 'regard-VERSION';

self.addEventListener('install', (event) => {
  event.waitUntil(
    (async () => {
      const files = await (await fetch('files.json', { cache: 'no-store' })).json();
      await (await caches.open(VERSION)).addAll(files);
      await self.skipWaiting();
    })(),
  );
});

self.addEventListener('activate', (event) => {
  event.waitUntil(
    (async () => {
      for (const name of await caches.keys()) if (name !== VERSION) await caches.delete(name);
      await self.clients.claim();
    })(),
  );
});

self.addEventListener('fetch', (event) => {
  event.respondWith(
    (async () => {
      const cached = await caches.match(event.request, { ignoreSearch: true });
      return cached ?? fetch(event.request);
    })(),
  );
});
